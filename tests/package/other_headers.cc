// As compiled with the C++ headers of another build, whose guard is another one (tandem/interface_guard.h).
namespace tandem {

extern const char kInterface_of_another_build;
[[gnu::used]] static const char* const kInterfaceGuard = &kInterface_of_another_build;

}  // namespace tandem

int main() { return 0; }
