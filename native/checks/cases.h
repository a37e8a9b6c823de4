// What the checks share: random numbers, which are the same in every run, and what is said when one fails.
#pragma once

#include <cmath>
#include <cstdint>
#include <random>
#include <string>
#include <vector>

#include "builds.h"
#include "thread_pool.h"

inline std::mt19937 random_bits(1);

// Normally distributed, the same numbers with every standard library.
inline float random_float() {
  const double a = (random_bits() + 1.0) / 4294967297.0, b = random_bits() / 4294967296.0;
  return static_cast<float>(std::sqrt(-2 * std::log(a)) * std::cos(2 * M_PI * b));
}

inline std::vector<float> random_floats(size_t n, float scale = 1) {
  std::vector<float> x(n);
  for (float& v : x) v = scale * random_float();
  return x;
}

inline int below(int n) { return static_cast<int>(random_bits() % static_cast<uint32_t>(n)); }

// The largest difference, in units of the largest wanted magnitude; not a number when one of them is where it should
// not be.
template <typename Got, typename Want>
double error(const Got& got, const Want& want) {
  double worst = 0, top = 1e-30;
  for (size_t i = 0; i < want.size(); i++) {
    const double d = std::fabs(double{got[i]} - double{want[i]});
    worst = d > worst || d != d ? d : worst;
    top = std::fmax(top, std::fabs(double{want[i]}));
  }
  return worst / top;
}

// Counts and names what fails in one build.
class Report {
 public:
  explicit Report(const char* build) : build_(build) {}
  void expect(bool good, const std::string& what);
  void expect_below(double found, double bound, const std::string& what);  // false for NaN
  int faults() const { return faults_; }

 private:
  const char* build_;
  int faults_ = 0;
};

void check_products(const sixfold::KernelTable& kernels, sixfold::ThreadPool& pool, Report& report);
void check_rows(const sixfold::KernelTable& kernels, Report& report);
void check_programs(const sixfold::KernelTable& kernels, Report& report);
void check_sampler(const sixfold::SamplerTable& sampler, Report& report);
// What is the same in every build.
void check_pool(Report& report);
void check_spm(Report& report);
