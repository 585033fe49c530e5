// Which pairs are kept (core/dropout.py): the words of Philox-4x32-10 (Salmon et al. 2011, section 3.3), bit by bit.
#pragma once

#include "problem.cuh"

namespace ringmpi {

// The four words at a counter under `key`.
DEVICE void philox(u32 (&words)[4], u64 key) {
  u32 low = u32(key), high = u32(key >> 32);
#pragma unroll
  for (int round = 0; round < 10; ++round, low += 0x9E3779B9u, high += 0xBB67AE85u) {
    const u32 left = high_product(0xD2511F53u, words[0]), right = high_product(0xCD9E8D57u, words[2]);
    const u32 low_left = 0xD2511F53u * words[0], low_right = 0xCD9E8D57u * words[2];
    words[0] = right ^ words[1] ^ low;
    words[2] = left ^ words[3] ^ high;
    words[1] = low_right;
    words[3] = low_left;
  }
}

// Bit n of the result: whether pair n, of the positions row(n) and key(n), is kept.
template <int COUNT, class Row, class Key>
DEVICE u32 kept_pairs(const Scoring& scoring, u32 head, u32 batch, Row row, Key key) {
  u32 words[4] = {}, have_row = 0, have_quad = 0, bits = 0;
#pragma unroll 1
  for (int n = 0; n < COUNT; ++n) {
    const u32 own_row = u32(row(n)), quad = u32(key(n) >> 2), number = u32(key(n)) & 3;
    if (n == 0 || quad != have_quad || own_row != have_row) {
      words[0] = own_row, words[1] = quad, words[2] = head, words[3] = batch;
      philox(words, scoring.seed);
      have_row = own_row, have_quad = quad;
    }
    const u32 word = number == 0 ? words[0] : number == 1 ? words[1] : number == 2 ? words[2] : words[3];
    bits |= u32(word >= scoring.least) << n;
  }
  return bits;
}

}  // namespace ringmpi
