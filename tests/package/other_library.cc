// Stands for the library of another build, with its own guard.
namespace tandem {

__attribute__((visibility("default"))) extern const char kInterface_of_another_build = 0;

}  // namespace tandem
