// Copies into a buffer of the stack, by lengths that are known at run time only: each hardening flag shows in
// this program.
#include <cstdio>
#include <cstring>

int main(int argc, char** argv) {
  char buffer[64];
  std::memcpy(buffer, argv[0], std::strlen(argv[0]) + static_cast<size_t>(argc));
  std::printf("%s\n", buffer);
  return 0;
}
