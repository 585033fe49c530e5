// A kernel with one fault of each kind that the emulator must see (tests/cuda/test_watch.py has the same names in the same
// order). Without a fault it reverses 128 floats by way of shared memory, of which there are 512 bytes.
#pragma once

#include "primitives.cuh"

namespace ringmpi {

enum Fault {
  NONE,
  NO_BARRIER,             // read what another thread writes
  WRITE_WHILE_READ,       // write what another thread reads
  SHARED_OUT_OF_BOUNDS,
  GLOBAL_READ_OUT_OF_BOUNDS,
  GLOBAL_WRITE_OUT_OF_BOUNDS,
  DIFFERENT_BARRIERS,
  NOT_ALL_AT_BARRIER,
  LANES_HAVE_PARTED,
  NEVER_WRITTEN,          // shared memory that is read
  COPY_NOT_WAITED_FOR,
  COPY_WAITED_FOR_TOO_LITTLE,  // one group may still be on its way
  COPY_SEEN_BY_OTHERS,    // waited for, with no barrier after it
  COPY_NOT_COMMITTED,
  COPY_AT_THE_END,        // committed, still on its way when its thread ends
  COPY_ONTO_READ,         // begins while others read what is there
  COPY_NOT_ALIGNED,
  COPY_OUT_OF_BOUNDS,
};

struct Faulty {
  float* numbers;  // [128]
  int fault;
};

DEVICE void copy_own(float* shared, const float* from) {
  copy16_async(shared + 4 * thread_index(), from, true);
  copies_commit();
}

// Copies by the first warp.
DEVICE void copy_faultily(const Faulty& p, float* shared) {
  const int t = thread_index();
  float* const own = p.numbers + 4 * t;
  switch (p.fault) {
    case COPY_NOT_WAITED_FOR: copy_own(shared, own), own[0] = shared[4 * t], copies_wait<0>(); break;
    case COPY_WAITED_FOR_TOO_LITTLE: copy_own(shared, own), copies_wait<1>(), own[0] = shared[4 * t], copies_wait<0>(); break;
    case COPY_SEEN_BY_OTHERS: copy_own(shared, own), copies_wait<0>(), own[0] = shared[t / 2 * 4]; break;
    case COPY_NOT_COMMITTED: copy16_async(shared + 4 * t, own, true); break;
    case COPY_ONTO_READ: copy_own(shared, own), copies_wait<0>(); break;
    case COPY_NOT_ALIGNED: copy_own(shared + 1, own), copies_wait<0>(); break;
    case COPY_OUT_OF_BOUNDS: copy_own(shared, own + 4), copies_wait<0>(); break;
    default: copy_own(shared, own);
  }
}

KERNEL void faulty(const Faulty p) {
  unsigned char* const memory = shared_memory();
  float* const shared = reinterpret_cast<float*>(memory);
  const int t = thread_index(), fault = p.fault;
  if (fault >= COPY_NOT_WAITED_FOR && fault != COPY_ONTO_READ) {
    if (t < 32) copy_faultily(p, shared);
    return;
  }
  if (fault != NEVER_WRITTEN || t != 5) shared[t + (fault == SHARED_OUT_OF_BOUNDS)] = p.numbers[t + (fault == GLOBAL_READ_OUT_OF_BOUNDS)];
  if (fault == NOT_ALL_AT_BARRIER && t == 9) return;
  if (fault == DIFFERENT_BARRIERS && t < 64)
    barrier();
  else if (fault != NO_BARRIER)
    barrier();
  float found = shared[fault == NO_BARRIER ? t / 2 : 127 - t];
  if (fault == WRITE_WHILE_READ && t == 3) shared[17] = 2;
  if (fault == COPY_ONTO_READ && t < 32) copy_faultily(p, shared);
  if (fault == LANES_HAVE_PARTED) {
    if (t % 2)
      found = exchange(found, 1);
    else
      found = exchange(found, 2);
  }
  p.numbers[t + (fault == GLOBAL_WRITE_OUT_OF_BOUNDS)] = found;
}

}  // namespace ringmpi
