/* As consumer.cc, in C. */
#include <stdio.h>
#include <tandem/tandem.h>

int main(void) {
  printf("ABI %d\n", (int)tandem_abi_version());
  return tandem_abi_version() == TANDEM_ABI_VERSION ? 0 : 1;
}
