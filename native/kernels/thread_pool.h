// A persistent pool that runs a job: a list of phases, each a number of chunks. All chunks of a phase are complete
// before the next phase begins.
//
// A phase ends when its chunks are done, not when all threads have arrived. A thread that the operating system
// has taken off its CPU therefore delays the others only if it holds a chunk, and then only until it gets a CPU back:
// those who wait spin briefly, then sleep, so that the missing thread finds a free CPU. Between jobs the
// workers sleep. The caller of `run` works too.
//
// Each thread has a share of a phase's chunks, which it takes in order. Mostly a share is a range of neighbours: they
// read neighbouring memory, and one stream a thread is what the hardware fetches ahead well (products with few rows are
// a quarter to a half faster than with chunks dealt in turn). Whoever is done with his own share takes from the
// others', so the chunks that a thread runs need not rise.
//
//   claim slot of phase s and a share (s counts over all jobs):   [ s : 48 bits | chunks given out : 16 bits ]
//   done slot of phase s:                                         [ s : 48 bits | chunks completed : 16 bits ]
//
// Slots are reused every 4 phases without being reset: a word with an older s counts as (s, 0), one with a newer s says
// that phase s is over. So a worker that wakes up long after its job has ended finds nothing to take and goes on.
#pragma once

#include <atomic>
#include <cstdint>
#include <memory>
#include <mutex>
#include <thread>
#include <vector>

namespace sixfold {

// Chunks of one phase. `fn(arg, op, chunk, thread)` is called once for each chunk in [0, n_chunks).
using ChunkFunction = void (*)(void* arg, const void* op, int chunk, int thread);

struct Phase {
  ChunkFunction fn;
  const void* op;
  int n_chunks;
  bool longest_first = false;  // chunks get shorter: they are dealt in turn, so that each share has some long ones
};

constexpr int kMaxChunks = 60000;  // a phase's counters have 16 bits

uint64_t clock_ns();  // CLOCK_MONOTONIC

class ThreadPool {
 public:
  explicit ThreadPool(int n_threads);
  ~ThreadPool();  // joins its threads
  ThreadPool(const ThreadPool&) = delete;
  ThreadPool& operator=(const ThreadPool&) = delete;

  int size() const { return n_threads_; }

  // Runs the phases in order and returns when the last is complete. Phases without chunks are skipped. Jobs of several
  // callers run one after another. Chunk functions must not throw. `arg` and `op` are not touched after the return,
  // even by a worker that missed the job: it looks at them only with a chunk in hand. `ends`, if any, has room for a
  // number per phase with chunks: when it ended, as `clock_ns` says; only the caller's thread looks at the clock.
  void run(const std::vector<Phase>& phases, void* arg, uint64_t* ends = nullptr);

 private:
  struct alignas(64) Slot {
    std::atomic<uint64_t> word{0};
  };
  struct alignas(64) Worker {
    std::atomic<uint64_t> in_job{0};  // number of the job it is walking, 0: none
    std::thread thread;
  };
  struct Job {
    std::vector<Phase> phases;
    uint64_t first_phase = 0;
    void* arg = nullptr;
  };

  void work(int index);
  void walk(const Job& job, int thread, uint64_t number, uint64_t* ends);
  void wait_for(uint64_t phase, int n_chunks);
  void complete(uint64_t phase, int n_chunks);
  bool claim(uint64_t number, const Phase& phase, int thread, int* chunk);

  static constexpr int kSlots = 4, kJobs = 4;
  int n_threads_;
  std::unique_ptr<Slot[]> claims_[kSlots];  // [n_threads]
  Slot dones_[kSlots];
  alignas(64) std::atomic<uint64_t> published_{0};  // number of the newest job
  alignas(64) std::atomic<int> sleeping_in_phase_{0};
  std::atomic<int> sleeping_between_{0};
  std::atomic<bool> stop_{false};
  Job jobs_[kJobs];
  uint64_t next_phase_ = 1;
  std::mutex callers_;
  std::unique_ptr<Worker[]> workers_;
};

}  // namespace sixfold
