/* Makes changes to the files of one directory fail, while a byte in another file says so:
 *   '-' nothing fails
 *   'r' as on a file system that has become read-only (EROFS)
 *   'i' as on a disk that fails (EIO): what is open can be read, and nothing written or synced
 *   'q' as with a quota that is used up (EDQUOT)
 * To be preloaded. ZORB_SHIM_DIRECTORY is the directory, ZORB_SHIM_MODE the file with the byte. */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/uio.h>
#include <unistd.h>

static const volatile char *mode = "-";
static const char *directory = "";

__attribute__((constructor)) static void begin(void) {
    int (*real)(const char *, int, ...) = dlsym(RTLD_NEXT, "open");
    const char *path = getenv("ZORB_SHIM_MODE");
    int fd = path ? real(path, O_RDONLY | O_CLOEXEC) : -1;
    void *byte = fd < 0 ? MAP_FAILED : mmap(NULL, 1, PROT_READ, MAP_SHARED, fd, 0);
    if (byte == MAP_FAILED) {
        fprintf(stderr, "the shim does not know its mode\n");
        abort();
    }
    close(fd);
    mode = byte;
    directory = getenv("ZORB_SHIM_DIRECTORY");
}

static int is_ours(const char *path) {
    return strncmp(path, directory, strlen(directory)) == 0;
}

static int is_file_of_ours(int fd) {
    char name[64], path[4096];
    snprintf(name, sizeof name, "/proc/self/fd/%d", fd);
    ssize_t len = readlink(name, path, sizeof path - 1);
    if (len < 0)
        return 0;
    path[len] = 0;
    return is_ours(path);
}

/* The error of a change to names, or 0. */
static int names_fail(const char *path) {
    char now = *mode;
    if (now == '-' || !is_ours(path))
        return 0;
    return now == 'r' ? EROFS : now == 'i' ? EIO : 0;
}

/* The error of a change to bytes, or 0. */
static int bytes_fail(int fd) {
    char now = *mode;
    if (now == '-' || !is_file_of_ours(fd))
        return 0;
    return now == 'r' ? EROFS : now == 'i' ? EIO : EDQUOT;
}

/* The error of a sync, or 0. */
static int sync_fails(int fd) {
    return *mode == 'i' && is_file_of_ours(fd) ? EIO : 0;
}

#define REAL(name) static __typeof__(&name) real; if (!real) real = (__typeof__(&name))dlsym(RTLD_NEXT, #name)
#define FAIL(error) do { int number = (error); if (number) { errno = number; return -1; } } while (0)

static int opening_fails(const char *path, int flags) {
    int changes = flags & (O_CREAT | O_TRUNC) || (flags & O_ACCMODE) != O_RDONLY;
    return changes ? names_fail(path) : 0;
}

#define OPEN(name) \
    int name(const char *path, int flags, ...) { \
        va_list rest; va_start(rest, flags); mode_t permissions = va_arg(rest, mode_t); va_end(rest); \
        REAL(name); FAIL(opening_fails(path, flags)); return real(path, flags, permissions); \
    }
OPEN(open)
OPEN(open64)

#define OPENAT(name) \
    int name(int at, const char *path, int flags, ...) { \
        va_list rest; va_start(rest, flags); mode_t permissions = va_arg(rest, mode_t); va_end(rest); \
        REAL(name); FAIL(opening_fails(path, flags)); return real(at, path, flags, permissions); \
    }
OPENAT(openat)
OPENAT(openat64)

ssize_t write(int fd, const void *bytes, size_t len) { REAL(write); FAIL(bytes_fail(fd)); return real(fd, bytes, len); }
ssize_t writev(int fd, const struct iovec *parts, int count) { REAL(writev); FAIL(bytes_fail(fd)); return real(fd, parts, count); }
ssize_t pwrite(int fd, const void *bytes, size_t len, off_t at) { REAL(pwrite); FAIL(bytes_fail(fd)); return real(fd, bytes, len, at); }
ssize_t pwrite64(int fd, const void *bytes, size_t len, off64_t at) { REAL(pwrite64); FAIL(bytes_fail(fd)); return real(fd, bytes, len, at); }
int ftruncate(int fd, off_t len) { REAL(ftruncate); FAIL(bytes_fail(fd)); return real(fd, len); }
int ftruncate64(int fd, off64_t len) { REAL(ftruncate64); FAIL(bytes_fail(fd)); return real(fd, len); }
int fsync(int fd) { REAL(fsync); FAIL(sync_fails(fd)); return real(fd); }
int fdatasync(int fd) { REAL(fdatasync); FAIL(sync_fails(fd)); return real(fd); }
int rename(const char *from, const char *to) { REAL(rename); FAIL(names_fail(to)); return real(from, to); }
int unlink(const char *path) { REAL(unlink); FAIL(names_fail(path)); return real(path); }
int mkdir(const char *path, mode_t permissions) { REAL(mkdir); FAIL(names_fail(path)); return real(path, permissions); }
