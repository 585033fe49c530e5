// Sums that have arrived, added to those made here (addition.py): to += other, each number by one thread.
#pragma once

#include "primitives.cuh"

namespace ringmpi {

constexpr int ADD_THREADS = 128;

struct Add {
  void* to;
  const void* other;
  i64 count, blocks;
};

template <class T> KERNEL void __launch_bounds__(ADD_THREADS) add(const Add call) {
  T* const to = static_cast<T*>(call.to);
  const T* const other = static_cast<const T*>(call.other);
  for (i64 n = i64(block_index()) * ADD_THREADS + thread_index(); n < call.count; n += call.blocks * ADD_THREADS)
    to[n] += other[n];
}

}  // namespace ringmpi
