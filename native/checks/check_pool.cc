// Every chunk runs once, all of a phase before the next, whoever calls: plain integers, so that a missing barrier is a
// race that the thread sanitizer sees.
#include <memory>
#include <random>
#include <thread>
#include <vector>

#include "cases.h"

using namespace sixfold;

namespace {

struct Work {
  std::vector<std::vector<int>> runs;  // [phase][chunk] times it ran
  std::vector<std::vector<int>> seen;  // [phase][chunk] chunks of the phase before that had run
};

struct Op {
  int phase;
};

void chunk_of(void* arg, const void* o, int chunk, int) {
  Work& work = *static_cast<Work*>(arg);
  const int phase = static_cast<const Op*>(o)->phase;
  work.runs[phase][chunk]++;
  if (!phase) return;
  for (const int n : work.runs[phase - 1]) work.seen[phase][chunk] += n;
}

bool run_jobs(ThreadPool& pool, int n_jobs, unsigned seed) {
  std::mt19937 random(seed);
  bool good = true;
  for (int j = 0; j < n_jobs; j++) {
    const int n_phases = static_cast<int>(1 + random() % 9);
    Work work;
    std::vector<Op> ops(n_phases);
    std::vector<Phase> phases;
    for (int p = 0; p < n_phases; p++) {
      const int n_chunks = static_cast<int>(random() % 7 ? random() % 6 : 40);
      ops[p].phase = p;
      work.runs.emplace_back(n_chunks);
      work.seen.emplace_back(n_chunks);
      phases.push_back({chunk_of, &ops[p], n_chunks, random() % 2 == 0});
    }
    uint64_t ends[9] = {}, last = clock_ns();
    const bool stamped = random() % 2;
    pool.run(phases, &work, stamped ? ends : nullptr);
    const uint64_t* end = ends;
    for (const Phase& phase : phases) {
      if (!phase.n_chunks) continue;
      good &= !stamped || *end >= last;
      last = *end++;
    }
    good &= !stamped || last <= clock_ns();
    for (int p = 0; p < n_phases; p++)
      for (size_t c = 0; c < work.runs[p].size(); c++) {
        good &= work.runs[p][c] == 1 && (!p || work.seen[p][c] == static_cast<int>(work.runs[p - 1].size()));
      }
  }
  return good;
}

}  // namespace

void check_pool(Report& report) {
  for (int n_threads = 1; n_threads <= 4; n_threads++) {
    ThreadPool pool(n_threads);
    report.expect(run_jobs(pool, 200, 1), "a chunk did not run once, after all of the phase before");
    bool good[3];
    std::vector<std::thread> callers;
    for (unsigned i = 0; i < 3; i++) callers.emplace_back([&, i] { good[i] = run_jobs(pool, 60, i); });
    for (std::thread& caller : callers) caller.join();
    report.expect(good[0] && good[1] && good[2], "the same, with several callers");
  }
  for (int i = 0; i < 30; i++) {  // its threads may not even have begun when it ends
    ThreadPool pool(3);
    if (i % 2) report.expect(run_jobs(pool, 1, static_cast<unsigned>(i)), "the same, in a pool's first job");
  }
}
