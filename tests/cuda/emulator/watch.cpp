// Watches memory. Shared memory: bounds, races, and what is read before anybody has written it. A kernel here orders its threads by barriers alone, so two accesses
// by different threads with no barrier between them, one of which writes, are a race. Global memory: every address
// must lie in a buffer that the host has named.
//
// The kernel is built with g++ -fsanitize=thread, which makes a call before each load and store. The library that
// belongs to it is not linked: its functions are here.
#include "fibers.h"

#include <dlfcn.h>

#include <algorithm>

namespace emulator {
namespace {

constexpr int NOBODY = -1, SEVERAL = -2;

// Of two bytes of shared memory: who was there last, and in which epoch (barriers passed).
struct Cell {
  int writer = NOBODY, written = -1, reader = NOBODY, read = -1;
  int copying = NOBODY;  // the thread whose asynchronous copy is on its way here
  Place where{};
};
std::vector<Cell> cells;
int watched_block = -1;

struct Buffer {
  uintptr_t start, stop;
};
std::vector<Buffer> buffers;
bool watching = false;

Cell& cell(uintptr_t offset) {
  const size_t needed = (size_t(block.shared_bytes) + 1) / 2;
  if (watched_block != block.number || cells.size() != needed) cells.assign(needed, Cell{}), watched_block = block.number;
  return cells[offset / 2];
}

void touch(uintptr_t offset, bool write, int thread, Place place) {
  Cell& at = cell(offset);
  const int epoch = block.fibers[size_t(thread)].epoch;
  const auto race = [&](const char* what) {
    fail(place, "race: thread %d and %s at byte %d of shared memory, %s:%d", thread, what, int(offset), at.where.file, at.where.line);
  };
  if (at.copying != NOBODY) race("a copy on its way");
  if (!write && at.writer == NOBODY) fail(place, "byte %d of shared memory is read, and nobody has written it", int(offset));
  if (at.writer != NOBODY && at.writer != thread && at.written == epoch) race("a write");
  if (write && at.read == epoch && at.reader != NOBODY && at.reader != thread) race("a read");
  if (write) at.writer = thread, at.written = epoch, at.reader = NOBODY;
  else at.reader = at.read == epoch && at.reader != NOBODY && at.reader != thread ? SEVERAL : thread, at.read = epoch;
  at.where = place;
}

uintptr_t shared_offset(const void* p, unsigned bytes, Place place) {
  const uintptr_t offset = reinterpret_cast<uintptr_t>(p) - reinterpret_cast<uintptr_t>(block.shared);
  if (offset + bytes > block.shared_bytes) fail(place, "byte %ld of %u bytes of shared memory", long(offset), block.shared_bytes);
  return offset;
}

// Shared memory with some room behind it: what runs over the end is an error, not somebody else's memory.
bool is_shared(const void* p) {
  const uintptr_t offset = reinterpret_cast<uintptr_t>(p) - reinterpret_cast<uintptr_t>(block.shared);
  return offset < block.shared_bytes + 1024u;
}
bool is_own(const void* p) {  // of the stack of a fiber, or of the emulator
  const char here = 0;
  return std::abs(static_cast<const char*>(p) - &here) < (256 << 10);
}

}  // namespace

void check_shared(const void* p, unsigned bytes, bool write, int thread, Place place) {
  const uintptr_t offset = shared_offset(p, bytes, place);
  if (!watching) return;
  for (uintptr_t at = offset / 2 * 2; at < offset + bytes; at += 2) touch(at, write, thread, place);
}

void check_global(const void* p, unsigned bytes, bool write, Place place) {
  if (buffers.empty()) return;
  const uintptr_t at = reinterpret_cast<uintptr_t>(p);
  auto after = std::upper_bound(buffers.begin(), buffers.end(), at, [](uintptr_t x, const Buffer& b) { return x < b.start; });
  if (after == buffers.begin() || at + bytes > (after - 1)->stop)
    fail(place, "a %s of global memory out of bounds: %u bytes at %p", write ? "write" : "read", bytes, p);
}

void copy_begins(const void* to, int thread, Place place) {
  check_shared(to, 16, true, thread, place);
  if (!watching) return;
  const uintptr_t offset = shared_offset(to, 16, place);
  for (uintptr_t at = offset; at < offset + 16; at += 2) cell(at).copying = thread;
}

void copy_ends(const void* to, int thread, Place place) {
  if (!watching) return;
  const uintptr_t offset = shared_offset(to, 16, place);
  for (uintptr_t at = offset; at < offset + 16; at += 2) {
    cell(at).copying = NOBODY;
    touch(at, true, thread, place);
  }
}

// A load or store of the kernel itself; `code` is where it returns to.
void access(const void* p, unsigned bytes, bool write, const void* code) {
  if (!watching || is_own(p)) return;
  static const char* const base = [] {  // of the library, which holds the kernel too
    Dl_info library;
    dladdr(reinterpret_cast<const void*>(&check_shared), &library);
    return static_cast<const char*>(library.dli_fbase);
  }();
  const Place place{"code", int(static_cast<const char*>(code) - base)};
  if (is_shared(p)) return check_shared(p, bytes, write, block.current, place);
  check_global(p, bytes, write, place);
}

}  // namespace emulator

extern "C" {

// The buffers of the device [count][start, stop], ascending. `watch`: look at every load and store.
void emulator_watch(const uint64_t* bounds, int count, int watch) {
  emulator::buffers.clear();
  for (int n = 0; n < count; ++n) emulator::buffers.push_back({bounds[2 * n], bounds[2 * n + 1]});
  emulator::watching = watch, emulator::watched_block = -1;
}

#define WATCHED(bytes)                                                                                           \
  void __tsan_read##bytes(void* p) { emulator::access(p, bytes, false, __builtin_return_address(0)); }            \
  void __tsan_write##bytes(void* p) { emulator::access(p, bytes, true, __builtin_return_address(0)); }            \
  void __tsan_unaligned_read##bytes(void* p) { emulator::access(p, bytes, false, __builtin_return_address(0)); }  \
  void __tsan_unaligned_write##bytes(void* p) { emulator::access(p, bytes, true, __builtin_return_address(0)); }
WATCHED(1)
WATCHED(2)
WATCHED(4)
WATCHED(8)
WATCHED(16)
void __tsan_read_range(void* p, unsigned long bytes) { emulator::access(p, unsigned(bytes), false, __builtin_return_address(0)); }
void __tsan_write_range(void* p, unsigned long bytes) { emulator::access(p, unsigned(bytes), true, __builtin_return_address(0)); }
void __tsan_init() {}
void __tsan_func_entry(void*) {}
void __tsan_func_exit() {}
void __tsan_vptr_update(void**, void*) {}
void __tsan_vptr_read(void**) {}
}
