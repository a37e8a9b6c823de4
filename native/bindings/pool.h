// What Python calls a thread pool.
#pragma once

#include <memory>

#include "../kernels/kernel_table.h"
#include "../kernels/memory.h"
#include "../kernels/thread_pool.h"

// A thread pool with the kernels that its threads run and the memory of what was packed with it.
struct Pool {
  std::shared_ptr<sixfold::ThreadPool> threads;
  const sixfold::KernelTable* kernels;
  std::shared_ptr<sixfold::Arena> arena;
};
