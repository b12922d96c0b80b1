// Runs of aerie-train as processes of their own: they can be killed, and several can be ranks of one run.
#pragma once

#include <arpa/inet.h>
#include <fcntl.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include <csignal>
#include <map>
#include <string>
#include <vector>

#include "base/file_io.h"
#include "gtest/gtest.h"

namespace aerie::train {

using Environment = std::map<std::string, std::string>;

class Process {
 public:
  /// What it says goes to `log`.
  Process(const std::vector<std::string>& arguments, const std::string& log, const Environment& environment = {}) : log_(log) {
    std::vector<std::string> all = {AERIE_TRAIN_PROGRAM};
    all.insert(all.end(), arguments.begin(), arguments.end());
    std::vector<char*> argv;
    for (std::string& argument : all) argv.push_back(argument.data());
    argv.push_back(nullptr);
    pid_ = ::fork();
    if (pid_ != 0) return;
    for (const auto& [name, value] : environment) ::setenv(name.c_str(), value.c_str(), 1);
    const int out = ::open(log.c_str(), O_WRONLY | O_CREAT | O_TRUNC, 0644);
    ::dup2(out, 1);
    ::dup2(out, 2);
    ::execv(argv[0], argv.data());
    ::_exit(127);
  }
  ~Process() {
    if (pid_ > 0) kill();
  }
  Process(const Process&) = delete;
  Process& operator=(const Process&) = delete;

  void signal(int number) {
    if (pid_ > 0) ::kill(pid_, number);  // kill(-1) is everything that this user may signal
  }
  void kill() {
    signal(SIGKILL);
    wait();
  }
  /// Its exit code; -1 where a signal ended it.
  int wait() {
    if (pid_ > 0) ended(::waitpid(pid_, &status_, 0));
    return WIFEXITED(status_) ? WEXITSTATUS(status_) : -1;
  }
  bool running() {
    if (pid_ > 0) ended(::waitpid(pid_, &status_, WNOHANG));
    return pid_ > 0;
  }
  std::string said() const { return read_file(log_, 1 << 20).value(); }

 private:
  void ended(pid_t reaped) {
    if (reaped != 0) pid_ = -1;
  }

  std::string log_;
  pid_t pid_ = -1;
  int status_ = 0;
};

/// A port that nobody listens on.
inline std::string free_port() {
  const int socket = ::socket(AF_INET, SOCK_STREAM, 0);
  sockaddr_in address = {};
  address.sin_family = AF_INET;
  address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  socklen_t size = sizeof(address);
  EXPECT_EQ(::bind(socket, reinterpret_cast<sockaddr*>(&address), size), 0);
  EXPECT_EQ(::getsockname(socket, reinterpret_cast<sockaddr*>(&address), &size), 0);
  ::close(socket);
  return std::to_string(ntohs(address.sin_port));
}

inline Environment rank_environment(int rank, int size, const std::string& port) {
  return {{"RANK", std::to_string(rank)}, {"WORLD_SIZE", std::to_string(size)}, {"MASTER_ADDR", "127.0.0.1"}, {"MASTER_PORT", port}};
}

}  // namespace aerie::train
