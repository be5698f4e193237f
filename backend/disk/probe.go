package disk

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"strings"

	"github.com/nvmf-target/nvmf-target/backend"
	"github.com/nvmf-target/nvmf-target/internal/storage"
)

// ErrMissing is the error for a device that does not exist. It is an fs.ErrNotExist.
var ErrMissing = backend.WithHint(missing{}, "\"nvmf-target disks\" lists the available devices.")

type missing struct{}

func (missing) Error() string { return "no such device" }

func (missing) Unwrap() error { return fs.ErrNotExist }

// Unreachable explains an error of stat(2): ErrMissing if there is no such device.
func Unreachable(err error) error {
	hint := "Correct the path."
	switch {
	case errors.Is(err, fs.ErrNotExist):
		return ErrMissing
	case errors.Is(err, fs.ErrPermission):
		hint = "Let the user that runs the target reach it."
	}
	return backend.WithHint(fmt.Errorf("cannot be reached: %w", err), hint)
}

// Probe reports whether the engine can be used.
func (e *Engine) Probe(r *backend.Report) {
	if err := e.check(); err != nil {
		r.Errorf("Allow io_uring, or set disks.engine: auto or threads.", "%v", err)
	}
}

// CheckInstances returns an error if another instance of this program writes to the storage below
// the block device, such as a loop device's file, which opening exclusively does not show.
func CheckInstances(path string) error {
	for _, u := range usersOf(path) {
		if isInstance(u) {
			return backend.WithHint(fmt.Errorf("%w by %s", backend.ErrInUse, u.Name),
				"Stop it, or choose another one.")
		}
	}
	return nil
}

// usersOf returns the users of the storage below the path, as far as they can be found.
func usersOf(path string) []storage.User {
	m := storage.Linux()
	s, err := m.StackOf(path)
	if err != nil {
		return nil
	}
	users, _ := m.Users(s)
	return users
}

// isInstance reports whether a user is another process of this program.
func isInstance(u storage.User) bool {
	self, _ := os.ReadFile("/proc/self/comm")
	return u.Program != "" && u.Program == strings.TrimSpace(string(self))
}

// ProbeUsers reports the users of the file or block device at path. held is the reason why it
// cannot be opened exclusively, nil if it can. A process is a warning if it does not prevent Open,
// or if it is another instance of this program, which may end before this one opens anything. Every
// other user is an error.
func ProbeUsers(path string, held error, r *backend.Report) {
	var names []string
	explained := held == nil
	for _, u := range usersOf(path) {
		if u.Program == "" || held != nil && !isInstance(u) {
			names = append(names, u.Name)
			continue
		}
		explained = true
		r.Warnf("Stop it before the target starts.", "is in use by %s", u.Name)
	}
	switch {
	case len(names) > 0:
		r.Errorf("Unmount it, stop its users, or choose another one; "+
			"\"nvmf-target disks\" lists disks and their users.", "is in use: %s",
			strings.Join(names, ", "))
	case !explained:
		r.Add(held)
	}
}
