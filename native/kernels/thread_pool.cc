#include "thread_pool.h"

#include <linux/futex.h>
#include <pthread.h>
#include <sched.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <csignal>
#include <cstdio>
#include <ctime>

namespace sixfold {
namespace {

constexpr int kCountBits = 16;
constexpr uint64_t kCountMask = (uint64_t{1} << kCountBits) - 1;

// How often a waiter looks before it sleeps; a pause is about 25 ns. A chunk that is being computed ends within the
// spin; if it does not, its thread has lost its CPU, and sleeping gives it one: an idle CPU fetches a waiting thread at
// once. (sched_yield does not: it hands the CPU to whatever else is queued on it, for a whole time slice.)
constexpr int kSpinsInPhase = 300, kSpinsBetween = 1000;

void pause() {
#if defined(__x86_64__)
  __builtin_ia32_pause();
#elif defined(__aarch64__)
  asm volatile("yield");
#endif
}

// The futex is the low half of the word (little endian).
uint32_t* low_half(std::atomic<uint64_t>* word) { return reinterpret_cast<uint32_t*>(word); }

void futex_wait(std::atomic<uint64_t>* word, uint32_t expected, long timeout_ns) {
  const timespec timeout{timeout_ns / 1000000000, timeout_ns % 1000000000};
  syscall(SYS_futex, low_half(word), FUTEX_WAIT_PRIVATE, expected, &timeout, nullptr, 0);
}

void futex_wake_all(std::atomic<uint64_t>* word) {
  syscall(SYS_futex, low_half(word), FUTEX_WAKE_PRIVATE, 1 << 30, nullptr, nullptr, 0);
}

// The next of the `n` chunks that a claim slot counts; false when all are given out or the phase is over.
bool take(std::atomic<uint64_t>& word, uint64_t phase, int n, int* given) {
  uint64_t seen = word.load(std::memory_order_relaxed);
  for (;;) {
    const uint64_t tag = seen >> kCountBits;
    const uint64_t next = tag == phase ? seen & kCountMask : 0;
    if (tag > phase || next >= static_cast<uint64_t>(n)) return false;
    if (word.compare_exchange_weak(seen, phase << kCountBits | (next + 1), std::memory_order_relaxed)) {
      *given = static_cast<int>(next);
      return true;
    }
  }
}

}  // namespace

uint64_t clock_ns() {
  timespec now;
  clock_gettime(CLOCK_MONOTONIC, &now);
  return static_cast<uint64_t>(now.tv_sec) * 1000000000 + static_cast<uint64_t>(now.tv_nsec);
}

ThreadPool::ThreadPool(int n_threads) : n_threads_(n_threads), workers_(new Worker[n_threads]) {
  for (auto& claims : claims_) claims.reset(new Slot[n_threads]);
  for (int i = 1; i < n_threads; i++) {
    workers_[i].thread = std::thread([this, i] { work(i); });
    char name[24];  // the kernel keeps 15 characters, and refuses longer names
    std::snprintf(name, sizeof name, "compute %d", i % 1000000);
    pthread_setname_np(workers_[i].thread.native_handle(), name);
  }
}

ThreadPool::~ThreadPool() {
  stop_ = true;
  published_++;
  futex_wake_all(&published_);
  for (int i = 1; i < n_threads_; i++) workers_[i].thread.join();
}

void ThreadPool::run(const std::vector<Phase>& phases, void* arg, uint64_t* ends) {
  const std::lock_guard<std::mutex> lock(callers_);
  const uint64_t number = published_.load(std::memory_order_relaxed) + 1;
  Job& job = jobs_[number % kJobs];
  // A worker that still walks the job which lay here before must leave it first.
  for (int i = 1; i < n_threads_; i++) {
    for (;;) {
      const uint64_t old = workers_[i].in_job.load();
      if (old == 0 || old % kJobs != number % kJobs) break;
      sched_yield();
    }
  }
  job.phases.clear();
  for (const Phase& phase : phases)
    if (phase.n_chunks > 0) job.phases.push_back(phase);
  job.arg = arg;
  job.first_phase = next_phase_;
  next_phase_ += job.phases.size();
  published_.store(number);
  if (sleeping_between_.load() > 0 && n_threads_ > 1) futex_wake_all(&published_);
  walk(job, 0, number, ends);
}

void ThreadPool::work(int index) {
  sigset_t all;  // signals are for the threads that run Python
  sigfillset(&all);
  pthread_sigmask(SIG_BLOCK, &all, nullptr);
  Worker& self = workers_[index];
  uint64_t seen = 0;
  for (;;) {
    uint64_t number = published_.load();
    for (int spin = 0; number == seen && spin < kSpinsBetween; spin++) {
      pause();
      number = published_.load();
    }
    while (number == seen) {
      sleeping_between_++;
      if (published_.load() == seen) futex_wait(&published_, static_cast<uint32_t>(seen), 1000000000);
      sleeping_between_--;
      number = published_.load();
    }
    if (stop_) return;
    seen = number;
    self.in_job.store(number);
    // The caller looks at `in_job` before it overwrites a job; had a newer job been published meanwhile, it may have
    // looked too early.
    if (published_.load() == number) walk(jobs_[number % kJobs], index, number, nullptr);
    self.in_job.store(0);
  }
}

void ThreadPool::walk(const Job& job, int thread, uint64_t number, uint64_t* ends) {
  uint64_t phase = job.first_phase;
  for (const Phase& p : job.phases) {
    if (published_.load(std::memory_order_relaxed) != number) return;  // the job has ended without this thread
    int chunk;
    while (claim(phase, p, thread, &chunk)) {
      p.fn(job.arg, p.op, chunk, thread);
      complete(phase, p.n_chunks);
    }
    wait_for(phase, p.n_chunks);
    if (ends) *ends++ = clock_ns();
    phase++;
  }
}

bool ThreadPool::claim(uint64_t number, const Phase& phase, int thread, int* chunk) {
  const int each = phase.n_chunks / n_threads_, more = phase.n_chunks % n_threads_;
  for (int i = 0; i < n_threads_; i++) {
    const int owner = (thread + i) % n_threads_;
    int given;
    if (!take(claims_[number % kSlots][owner].word, number, each + (owner < more), &given)) continue;
    *chunk = phase.longest_first ? given * n_threads_ + owner : owner * each + std::min(owner, more) + given;
    return true;
  }
  return false;
}

void ThreadPool::complete(uint64_t phase, int n_chunks) {
  std::atomic<uint64_t>& word = dones_[phase % kSlots].word;
  uint64_t seen = word.load(std::memory_order_relaxed), done;
  do {
    done = (seen >> kCountBits == phase ? seen & kCountMask : 0) + 1;
  } while (!word.compare_exchange_weak(seen, phase << kCountBits | done));
  if (done == static_cast<uint64_t>(n_chunks) && sleeping_in_phase_.load() > 0) futex_wake_all(&word);
}

void ThreadPool::wait_for(uint64_t phase, int n_chunks) {
  std::atomic<uint64_t>& word = dones_[phase % kSlots].word;
  for (int round = 0;; round++) {
    const uint64_t seen = word.load();
    const uint64_t tag = seen >> kCountBits;
    if (tag > phase || (tag == phase && (seen & kCountMask) == static_cast<uint64_t>(n_chunks))) return;
    if (round < kSpinsInPhase) {
      pause();
    } else {
      sleeping_in_phase_++;
      if (word.load() == seen) futex_wait(&word, static_cast<uint32_t>(seen), 1000000);
      sleeping_in_phase_--;
    }
  }
}

}  // namespace sixfold
