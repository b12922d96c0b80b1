// aerie: EAGLE-3 speculative decoding on CPUs. One file per subcommand beside this one.
#include "base/log.h"
#include "command.h"

int main(int argc, char** argv) {
  using namespace aerie;
  CLI::App app{"aerie: captures hidden states, evaluates EAGLE-3 drafters and generates with them"};
  app.set_version_flag("--version", AERIE_VERSION);
  app.require_subcommand(1);
  bool verbose = false;
  app.add_flag("-v,--verbose", verbose, "more messages on stderr");

  cli::Work work;
  cli::add_run(app, work);
  cli::add_chat(app, work);
  cli::add_capture(app, work);
  cli::add_data(app, work);
  cli::add_train(app, work);
  cli::add_eval(app, work);
  cli::add_bench(app, work);
  cli::add_forward(app, work);
  cli::add_inspect(app, work);
  cli::add_convert(app, work);
  cli::add_doctor(app, work);
  cli::add_tokenize(app, work);
  try {
    app.parse(argc, argv);
  } catch (const CLI::ParseError& error) {
    return app.exit(error) == 0 ? cli::kDone : cli::kBadUsage;
  }
  init_logging(verbose);
  try {
    const Status status = work();
    if (status.ok()) return cli::kDone;
    spdlog::error("{}", status.message());
    return status.code() == StatusCode::kInvalidArgument ? cli::kBadUsage : cli::kFailed;
  } catch (const std::bad_alloc&) {
    spdlog::error("the memory of this machine is too small for what was asked");
  } catch (const std::exception& error) {
    spdlog::error("internal error: {}", error.what());
  }
  return cli::kFailed;
}
