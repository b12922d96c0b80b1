// aerie train: hands over to aerie-train, the one program that links LibTorch.
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <filesystem>

#include "command.h"

namespace aerie::cli {
namespace {

Status run_train(const std::vector<std::string>& arguments) {
  std::error_code ignored;
  const auto program = std::filesystem::read_symlink("/proc/self/exe", ignored).parent_path() / "aerie-train";
  if (!std::filesystem::exists(program)) {
    return not_found("{}: is not built; configure with -DAERIE_BUILD_TRAIN=ON and a LibTorch (scripts/retrain.sh does)", program.string());
  }
  std::vector<char*> argv = {const_cast<char*>(program.c_str())};
  for (const std::string& argument : arguments) argv.push_back(const_cast<char*>(argument.c_str()));
  argv.push_back(nullptr);
  execv(program.c_str(), argv.data());
  return io_error("{}: cannot be started: {}", program.string(), std::strerror(errno));
}

}  // namespace

void add_train(CLI::App& app, Work& work) {
  auto* command = app.add_subcommand("train", "train a drafter on captured states (runs aerie-train; see aerie-train --help)");
  command->prefix_command();
  command->set_help_flag();  // --help goes to aerie-train, which knows the options
  command->callback([command, &work] { work = [arguments = command->remaining()] { return run_train(arguments); }; });
}

}  // namespace aerie::cli
