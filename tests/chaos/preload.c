/* Preload: gives a process another wall clock and a failing disk, both set from outside while it runs.

   Loaded into every process of a chaos stack (LD_PRELOAD). A process that runs `-m NAME` maps the file NAME in CHAOS_CONTROLS,
   if there is one, and heeds it: an offset of CLOCK_REALTIME, and the error with which writes to files fail. Everything else
   goes to libc. Waits with a deadline of that clock are moved back, as the kernel does not know the offset. */

#define _GNU_SOURCE
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <linux/futex.h>
#include <pthread.h>
#include <semaphore.h>
#include <stdarg.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/time.h>
#include <sys/uio.h>
#include <time.h>
#include <unistd.h>

struct control {
  volatile int64_t clock_offset_ns;
  volatile int64_t disk_errno;
};

static struct control nothing;
static struct control *control = &nothing;

/* The next definition of a function behind this library's. */
#define REAL(name) \
  static __typeof__(name) *real; \
  if (!real) real = (__typeof__(name) *)dlsym(RTLD_NEXT, #name)

__attribute__((constructor)) static void map_control(void) {
  char line[4096], path[4096];
  const char *directory = getenv("CHAOS_CONTROLS");
  int fd = open("/proc/self/cmdline", O_RDONLY);
  if (!directory || fd < 0) return;
  ssize_t length = read(fd, line, sizeof line - 1);
  close(fd);
  line[length > 0 ? length : 0] = 0;
  for (char *word = line; word < line + length; word += strlen(word) + 1) {
    if (strcmp(word, "-m")) continue;
    snprintf(path, sizeof path, "%s/%s", directory, word + 3);
    if ((fd = open(path, O_RDONLY)) < 0) return;
    void *mapped = mmap(NULL, sizeof *control, PROT_READ, MAP_SHARED, fd, 0);
    close(fd);
    if (mapped != MAP_FAILED) control = mapped;
    return;
  }
}

/* --- the clock ---------------------------------------------------------------------------------------------------------- */

static void add(struct timespec *time, int64_t ns) {
  int64_t sum = (int64_t)time->tv_sec * 1000000000 + time->tv_nsec + ns;
  time->tv_sec = sum / 1000000000;
  time->tv_nsec = sum % 1000000000;
}

int clock_gettime(clockid_t id, struct timespec *time) {
  REAL(clock_gettime);
  int result = real(id, time);
  if (!result && (id == CLOCK_REALTIME || id == CLOCK_REALTIME_COARSE)) add(time, control->clock_offset_ns);
  return result;
}

int gettimeofday(struct timeval *restrict time, void *restrict zone) {
  struct timespec now;
  (void)zone;
  clock_gettime(CLOCK_REALTIME, &now);
  time->tv_sec = now.tv_sec;
  time->tv_usec = now.tv_nsec / 1000;
  return 0;
}

time_t time(time_t *result) {
  struct timespec now;
  clock_gettime(CLOCK_REALTIME, &now);
  if (result) *result = now.tv_sec;
  return now.tv_sec;
}

/* The same moment on the kernel's clock. Deadlines of CLOCK_MONOTONIC are small numbers: nobody has been up for 30 years. */
static struct timespec to_kernel(const struct timespec *deadline) {
  struct timespec moved = *deadline;
  if (moved.tv_sec > 1000000000) add(&moved, -control->clock_offset_ns);
  return moved;
}

int pthread_cond_timedwait(pthread_cond_t *restrict cond, pthread_mutex_t *restrict mutex, const struct timespec *restrict at) {
  REAL(pthread_cond_timedwait);
  struct timespec moved = to_kernel(at);
  return real(cond, mutex, &moved);
}

int sem_timedwait(sem_t *restrict sem, const struct timespec *restrict at) {
  REAL(sem_timedwait);
  struct timespec moved = to_kernel(at);
  return real(sem, &moved);
}

long syscall(long number, ...) {
  static long (*real)(long, ...);
  if (!real) real = (long (*)(long, ...))dlsym(RTLD_NEXT, "syscall");
  va_list more;
  va_start(more, number);
  long a = va_arg(more, long), b = va_arg(more, long), c = va_arg(more, long);
  long d = va_arg(more, long), e = va_arg(more, long), f = va_arg(more, long);
  va_end(more);
  struct timespec moved;
  if (number == SYS_futex && (b & FUTEX_CLOCK_REALTIME) && d) {
    moved = to_kernel((const struct timespec *)d);
    d = (long)&moved;
  }
  return real(number, a, b, c, d, e, f);
}

/* --- the disk ----------------------------------------------------------------------------------------------------------- */

static int fails(int fd) {
  struct stat found;
  if (!control->disk_errno || fstat(fd, &found) || !S_ISREG(found.st_mode)) return 0;
  errno = (int)control->disk_errno;
  return 1;
}

static int fails_to_make(const char *path, int flags) {
  if (!control->disk_errno || !(flags & O_CREAT) || !strncmp(path, "/dev/", 5) || !strncmp(path, "/proc/", 6)) return 0;
  errno = (int)control->disk_errno;
  return 1;
}

#define OF_FD(type, name, parameters, arguments) \
  type name parameters { \
    REAL(name); \
    return fails(fd) ? -1 : real arguments; \
  }

OF_FD(ssize_t, write, (int fd, const void *data, size_t size), (fd, data, size))
OF_FD(ssize_t, pwrite, (int fd, const void *data, size_t size, off_t at), (fd, data, size, at))
OF_FD(ssize_t, pwrite64, (int fd, const void *data, size_t size, off64_t at), (fd, data, size, at))
OF_FD(ssize_t, writev, (int fd, const struct iovec *parts, int count), (fd, parts, count))
OF_FD(int, ftruncate, (int fd, off_t size), (fd, size))
OF_FD(int, ftruncate64, (int fd, off64_t size), (fd, size))
OF_FD(int, fsync, (int fd), (fd))
OF_FD(int, fdatasync, (int fd), (fd))

#define OPEN(name) \
  int name(const char *path, int flags, ...) { \
    REAL(name); \
    va_list more; \
    va_start(more, flags); \
    mode_t mode = va_arg(more, mode_t); \
    va_end(more); \
    return fails_to_make(path, flags) ? -1 : real(path, flags, mode); \
  }

OPEN(open)
OPEN(open64)

#define OPENAT(name) \
  int name(int at, const char *path, int flags, ...) { \
    REAL(name); \
    va_list more; \
    va_start(more, flags); \
    mode_t mode = va_arg(more, mode_t); \
    va_end(more); \
    return fails_to_make(path, flags) ? -1 : real(at, path, flags, mode); \
  }

OPENAT(openat)
OPENAT(openat64)

int mkdir(const char *path, mode_t mode) {
  REAL(mkdir);
  return fails_to_make(path, O_CREAT) ? -1 : real(path, mode);
}

/* A socket of a path needs an inode. */
int bind(int fd, const struct sockaddr *address, socklen_t length) {
  REAL(bind);
  if (control->disk_errno && address->sa_family == AF_UNIX) {
    errno = (int)control->disk_errno;
    return -1;
  }
  return real(fd, address, length);
}
