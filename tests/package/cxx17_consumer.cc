// Uses the C interface from C++17, which Tandem::c leaves as it is.
#include <cstring>

#include "tandem/tandem.h"

static_assert(__cplusplus == 201703L, "the target has raised the standard");

int main() { return std::strlen(tandem_version()) > 0 ? 0 : 1; }
