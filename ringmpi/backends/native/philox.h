// Philox-4x32-10 (Salmon et al. 2011, section 3.3), one counter a lane: the words of core/philox.py, bit by bit.
#pragma once

#include <cstdint>

namespace ringmpi {

// words[w][lane]: in: the four words of each counter; out: its four random words under `key`.
template <int LANES_> inline void philox(uint32_t (&words)[4][LANES_], uint64_t key) {
  uint32_t low = uint32_t(key), high = uint32_t(key >> 32);
  for (int round = 0; round < 10; ++round, low += 0x9E3779B9u, high += 0xBB67AE85u)
    for (int lane = 0; lane < LANES_; ++lane) {
      const uint64_t left = uint64_t(0xD2511F53u) * words[0][lane], right = uint64_t(0xCD9E8D57u) * words[2][lane];
      words[0][lane] = uint32_t(right >> 32) ^ words[1][lane] ^ low;
      words[2][lane] = uint32_t(left >> 32) ^ words[3][lane] ^ high;
      words[1][lane] = uint32_t(right);
      words[3][lane] = uint32_t(left);
    }
}

}  // namespace ringmpi
