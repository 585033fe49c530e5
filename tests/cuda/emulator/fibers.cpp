// Runs a block: switches between fibers, lets warps and barriers meet, brings asynchronous copies home.
#include "fibers.h"

#include <sys/mman.h>

#include <cstdarg>
#include <cstdio>
#include <cstdlib>
#include <map>
#include <memory>

#if !defined(__x86_64__)
#error "the switch between fibers is written for x86-64"
#endif

// Saves the registers that a call must keep, changes stacks, and goes on where the other fiber left.
extern "C" void emulator_switch(void** leave, void* enter);
asm(R"(
.text
.globl emulator_switch
.type emulator_switch, @function
emulator_switch:
  push %rbx
  push %rbp
  push %r12
  push %r13
  push %r14
  push %r15
  mov %rsp, (%rdi)
  mov %rsi, %rsp
  pop %r15
  pop %r14
  pop %r13
  pop %r12
  pop %rbp
  pop %rbx
  ret
.size emulator_switch, .-emulator_switch
)");

namespace emulator {

Block block;

namespace {

constexpr size_t STACK_BYTES = 256 << 10, PAGE = 4096;
unsigned char* stacks = nullptr;
size_t stack_count = 0;

struct Known {
  Kernel kernel;
  unsigned argument_bytes;
};
std::map<std::string, Known>& kernels() {
  static std::map<std::string, Known> known;
  return known;
}

// The lowest page of each stack is closed: a deep one ends in a fault, not in its neighbour.
void make_stacks(size_t count) {
  if (count <= stack_count) return;
  if (stacks) munmap(stacks, stack_count * STACK_BYTES);
  void* const fresh = mmap(nullptr, count * STACK_BYTES, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  if (fresh == MAP_FAILED) std::abort();
  stacks = static_cast<unsigned char*>(fresh), stack_count = count;
  for (size_t n = 0; n < count; ++n) mprotect(stacks + n * STACK_BYTES, PAGE, PROT_NONE);
}

std::string who_waits() {
  static const char* const words[] = {"can run", "in a warp that waits", "at a barrier", "ended"};
  std::map<std::string, int> count;
  for (const Fiber& fiber : block.fibers) {
    char line[256];
    const bool waits = fiber.state == State::AT_COLLECTIVE || fiber.state == State::AT_BARRIER;
    std::snprintf(line, sizeof line, "%s %s:%d", words[int(fiber.state)], waits ? fiber.place.file : "", waits ? fiber.place.line : 0);
    ++count[line];
  }
  std::string all;
  for (const auto& [line, threads] : count) all += "; " + std::to_string(threads) + " threads " + line;
  return all;
}

// The next fiber that can run: lanes of the own warp first, so that a warp meets soon.
int next_ready() {
  const int threads = int(block.fibers.size()), own = block.current / LANES * LANES;
  for (int n = 1; n <= LANES; ++n) {
    const int at = own + (block.current + n) % LANES;
    if (at < threads && block.fibers[size_t(at)].state == State::READY) return at;
  }
  for (int n = 0; n < threads; ++n) {
    const int at = (own + LANES + n) % threads;
    if (block.fibers[size_t(at)].state == State::READY) return at;
  }
  return -1;
}

// Leaves the current fiber, whose state says why.
void leave() {
  Fiber& from = block.fibers[size_t(block.current)];
  const int next = next_ready();
  if (next < 0) {
    bool all_done = true;
    for (const Fiber& fiber : block.fibers) all_done = all_done && fiber.state == State::DONE;
    if (!all_done) fail(from.place, "nobody can go on%s", who_waits().c_str());
    emulator_switch(&from.stack, block.scheduler);
  }
  if (next == block.current) return;
  block.current = next;
  emulator_switch(&from.stack, block.fibers[size_t(next)].stack);
}

void begin() {
  block.kernel(block.argument);
  Fiber& own = block.fibers[size_t(block.current)];
  for (const auto& group : own.groups)
    if (!group.empty()) fail(group[0].place, "a copy is still on its way when its thread ends");
  if (!own.open.empty()) fail(own.open[0].place, "a copy was never committed");
  own.state = State::DONE;
  leave();
  std::abort();
}

void start(int thread) {
  Fiber& fiber = block.fibers[size_t(thread)];
  fiber = Fiber{};
  void** top = reinterpret_cast<void**>(stacks + size_t(thread + 1) * STACK_BYTES);
  *--top = nullptr;  // where `begin` would return to; keeps the stack aligned as a call does
  *--top = reinterpret_cast<void*>(&begin);
  top -= 6;
  fiber.stack = top;
}

void run_block(int number, int threads) {
  block.number = number, block.at_barrier = block.vote = block.last_vote = 0, block.current = 0;
  block.fibers.resize(size_t(threads));
  block.warps.assign(size_t(threads) / LANES, Warp{});
  std::memset(block.shared, 0xff, block.shared_bytes);  // NaN to whoever reads it unwritten
  for (int thread = 0; thread < threads; ++thread) start(thread);
  emulator_switch(&block.scheduler, block.fibers[0].stack);
}

}  // namespace

void fail(Place place, const char* format, ...) {
  char text[2048], line[2304];
  std::va_list values;
  va_start(values, format);
  std::vsnprintf(text, sizeof text, format, values);
  va_end(values);
  std::snprintf(line, sizeof line, "%s:%d: block %d thread %d: %s", place.file, place.line, block.number, block.current, text);
  block.error = line;
  void* left;
  emulator_switch(&left, block.scheduler);
  std::abort();
}

int thread_index() { return block.current; }
int block_index() { return block.number; }
unsigned char* shared_memory() { return block.shared; }

void together(Collective what, void* own, Place place) {
  Warp& warp = block.warps[size_t(block.current / LANES)];
  const int lane = block.current % LANES;
  if (!warp.arrived) warp.what = what, warp.place = place;
  if (warp.what != what || warp.place.line != place.line || warp.place.file != place.file)
    fail(place, "lanes of a warp have parted: others are at %s:%d", warp.place.file, warp.place.line);
  warp.own[lane] = own;
  warp.arrived |= 1u << lane;
  if (~warp.arrived) {
    Fiber& fiber = block.fibers[size_t(block.current)];
    fiber.state = State::AT_COLLECTIVE, fiber.place = place;
    leave();
    return;
  }
  what(warp.own, place);
  warp.arrived = 0;
  const int first = block.current - lane;
  for (int other = first; other < first + LANES; ++other) block.fibers[size_t(other)].state = State::READY;
}

int barrier(int vote, Place place) {
  Fiber& own = block.fibers[size_t(block.current)];
  if (!block.at_barrier) block.barrier_place = place, block.vote = 0;
  if (place.line != block.barrier_place.line || place.file != block.barrier_place.file)
    fail(place, "threads are at different barriers: others at %s:%d", block.barrier_place.file, block.barrier_place.line);
  block.vote |= vote != 0;
  own.state = State::AT_BARRIER, own.place = place;
  if (++block.at_barrier == int(block.fibers.size())) {
    block.at_barrier = 0, block.last_vote = block.vote;
    for (Fiber& fiber : block.fibers) fiber.state = State::READY, ++fiber.epoch;
    return block.last_vote;
  }
  leave();
  return block.last_vote;
}

void copy16_async(void* to, const void* from, bool valid, Place place) {
  if (reinterpret_cast<uintptr_t>(to) % 16 || reinterpret_cast<uintptr_t>(from) % 16)
    fail(place, "an asynchronous copy needs addresses at multiples of 16");
  copy_begins(to, block.current, place);
  if (valid) check_global(from, 16, false, place);
  std::memset(to, 0xff, 16);  // NaN until it has landed
  block.fibers[size_t(block.current)].open.push_back({static_cast<unsigned char*>(to), static_cast<const unsigned char*>(from), valid, place});
}

void copies_commit() {
  Fiber& own = block.fibers[size_t(block.current)];
  own.groups.push_back(std::move(own.open));
  own.open.clear();
}

void copies_wait(int pending, Place place) {
  Fiber& own = block.fibers[size_t(block.current)];
  for (; int(own.groups.size()) > pending; own.groups.pop_front())
    for (const Copy& copy : own.groups.front()) {
      copy_ends(copy.to, block.current, place);
      if (copy.valid) std::memcpy(copy.to, copy.from, 16);
      else std::memset(copy.to, 0, 16);
    }
}

int mutant = 0;  // 0: none
long mutant_met = 0;
int mutated(int number) {
  const bool here = number == mutant;
  mutant_met += here;
  return here;
}

int add_kernel(const char* name, Kernel kernel, unsigned argument_bytes) {
  kernels()[name] = {kernel, argument_bytes};
  return 0;
}

}  // namespace emulator

// What Python calls.
extern "C" {

// Bytes of the argument of a kernel; -1 where there is none of this name.
int emulator_argument_bytes(const char* name) {
  const auto found = emulator::kernels().find(name);
  return found == emulator::kernels().end() ? -1 : int(found->second.argument_bytes);
}

void emulator_choose(int mutant) { emulator::mutant = mutant, emulator::mutant_met = 0; }

// How often the place of the chosen mutant was come by since it was chosen.
long emulator_met() { return emulator::mutant_met; }

// Runs all blocks, one after the other; null, or what went wrong.
const char* emulator_launch(const char* name, int grid, int threads, unsigned shared_bytes, const void* argument) {
  using emulator::block;
  block.error.clear();
  block.kernel = emulator::kernels().at(name).kernel, block.argument = argument;
  const std::unique_ptr<void, void (*)(void*)> shared(std::aligned_alloc(1024, (size_t(shared_bytes) + 2047) / 1024 * 1024), std::free);
  block.shared = static_cast<unsigned char*>(shared.get()), block.shared_bytes = shared_bytes;
  emulator::make_stacks(size_t(threads));
  for (int number = 0; number < grid && block.error.empty(); ++number) emulator::run_block(number, threads);
  return block.error.empty() ? nullptr : block.error.c_str();
}
}
