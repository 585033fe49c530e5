// A pool of threads that sleep between calls, and dynamic tasks on them.
#pragma once

#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <condition_variable>
#include <cstdint>
#include <exception>
#include <functional>
#include <memory>
#include <mutex>
#include <new>
#include <thread>
#include <vector>

namespace ringmpi {

// Calls back about every millisecond while the calling thread works or waits. Only that thread may call `breathe`.
class Poll {
 public:
  explicit Poll(int (*call)()) : call_(call), next_(Clock::now() + PERIOD) {}
  void breathe() {
    if (!call_ || stopped() || Clock::now() < next_) return;
    if (call_()) stop();
    next_ = Clock::now() + PERIOD;
  }
  void stop() { stopped_ = true; }
  bool stopped() const { return stopped_.load(std::memory_order_relaxed); }
  bool asked_for() const { return call_ != nullptr; }

 private:
  using Clock = std::chrono::steady_clock;
  static constexpr std::chrono::microseconds PERIOD{1000};
  int (*call_)();
  Clock::time_point next_;
  std::atomic<bool> stopped_{false};
};

// job(task, worker): worker 0 is the calling thread. Which worker does a task must change no bit.
using Job = std::function<void(int64_t task, int worker)>;

class Pool {
 public:
  explicit Pool(int threads) : threads_(threads) {}
  ~Pool() {
    {
      std::lock_guard<std::mutex> lock(mutex_);
      leaving_ = true;
    }
    start_.notify_all();
    for (auto& thread : workers_) thread.join();
  }
  Pool(const Pool&) = delete;
  Pool& operator=(const Pool&) = delete;

  int threads() const { return threads_; }

  // All tasks 0 <= task < count, taken in ascending order by whoever is free; returns when all threads rest again.
  // A stopped poll skips what has not begun. What a job throws stops the poll, and is thrown again in the end.
  void run(int64_t count, const Job& job, Poll& poll) {
    const int helpers = int(std::min<int64_t>(threads_, count)) - 1;
    next_ = 0;
    thrown_ = nullptr;
    if (helpers > 0) begin(helpers, count, job, poll);
    take_tasks(count, job, poll, 0);
    if (helpers > 0) wait(poll);
    if (thrown_) std::rethrow_exception(thrown_);
  }

 private:
  void take_tasks(int64_t count, const Job& job, Poll& poll, int worker) {
    try {
      for (int64_t task; !poll.stopped() && (task = next_++) < count;) {
        job(task, worker);
        if (worker == 0) poll.breathe();
      }
    } catch (...) {
      std::lock_guard<std::mutex> lock(mutex_);
      thrown_ = std::current_exception();
      poll.stop();
    }
  }

  void begin(int helpers, int64_t count, const Job& job, Poll& poll) {
    while (int(workers_.size()) < threads_ - 1) {
      const int number = int(workers_.size()) + 1;
      workers_.emplace_back([this, number] { work(number); });
    }
    {
      std::lock_guard<std::mutex> lock(mutex_);
      job_ = &job, poll_ = &poll, count_ = count, wanted_ = helpers, busy_ = helpers;
      ++call_;
    }
    start_.notify_all();
  }

  void wait(Poll& poll) {
    std::unique_lock<std::mutex> lock(mutex_);
    while (busy_ > 0) {
      if (!poll.asked_for()) {
        done_.wait(lock, [this] { return busy_ == 0; });
      } else if (!done_.wait_for(lock, std::chrono::milliseconds(1), [this] { return busy_ == 0; })) {
        lock.unlock();  // what is called back may take its time
        poll.breathe();
        lock.lock();
      }
    }
  }

  void work(int number) {
    std::unique_lock<std::mutex> lock(mutex_);
    for (int64_t seen = 0;;) {
      start_.wait(lock, [&] { return leaving_ || call_ != seen; });
      if (leaving_) return;
      seen = call_;
      if (number > wanted_) continue;
      const int64_t count = count_;
      const Job& job = *job_;
      Poll& poll = *poll_;
      lock.unlock();
      take_tasks(count, job, poll, number);
      lock.lock();
      if (--busy_ == 0) done_.notify_one();
    }
  }

  const int threads_;
  std::vector<std::thread> workers_;
  std::mutex mutex_;
  std::condition_variable start_, done_;
  std::atomic<int64_t> next_{0};
  const Job* job_ = nullptr;
  Poll* poll_ = nullptr;
  std::exception_ptr thrown_;
  int64_t count_ = 0, call_ = 0;
  int wanted_ = 0, busy_ = 0;
  bool leaving_ = false;
};

// Memory that grows to its largest use and is used again.
class Buffer {
 public:
  template <class T> T* take(int64_t count) {
    const size_t bytes = (size_t(count) * sizeof(T) + 63) / 64 * 64;
    if (bytes > size_) {
      memory_.reset();
      size_ = 0;
      memory_.reset(static_cast<char*>(::operator new(bytes, std::align_val_t(64))));
      size_ = bytes;
    }
    return reinterpret_cast<T*>(memory_.get());
  }

 private:
  struct Free {
    void operator()(char* memory) const { ::operator delete(memory, std::align_val_t(64)); }
  };
  std::unique_ptr<char, Free> memory_;
  size_t size_ = 0;
};

// What a backend owns. Calls of one engine come one after the other.
class Engine {
 public:
  explicit Engine(int threads) : scratch(size_t(threads)), threads_(threads) {}
  ~Engine() { forget_if_forked(); }

  // A child of fork() has none of its parent's threads, so it gets a pool of its own.
  Pool& pool() {
    forget_if_forked();
    if (!pool_) pool_ = std::make_unique<Pool>(threads_);
    return *pool_;
  }

  std::mutex one_call;
  Buffer packed;                // of K and V, shared by the threads
  std::vector<Buffer> scratch;  // one a thread

 private:
  void forget_if_forked() {
    if (owner_ == getpid()) return;
    (void)pool_.release();  // its locks may be held for ever
    owner_ = getpid();
  }

  const int threads_;
  pid_t owner_ = getpid();
  std::unique_ptr<Pool> pool_;
};

}  // namespace ringmpi
