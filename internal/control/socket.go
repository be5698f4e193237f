package control

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"net"
	"os"
	"os/user"
	"path/filepath"
	"strconv"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"github.com/nvmf-target/nvmf-target/internal/sys"
)

const (
	// systemSocket is the socket of a target started by root or the service manager.
	systemSocket = "/run/nvmf-target/control.sock"
	// privateMode is the mode with which a socket is created, before it is shared.
	privateMode = 0o600
	// probeTimeout bounds the time in which a process at the socket must accept a connection.
	probeTimeout = time.Second
)

// DefaultSocket returns the control socket of a target of this user: in the directory that the
// service manager has created for it, or in the directory of the user. It is "" if there is none.
func DefaultSocket() string {
	if s := serviceSocket(); s != "" {
		return s
	}
	if os.Geteuid() == 0 {
		return systemSocket
	}
	return userSocket()
}

// ClientSocket returns the path at which a client of this user looks for the target: the first one
// with a socket. RUNTIME_DIRECTORY may belong to another service, which runs the client.
func ClientSocket() string {
	list := []string{serviceSocket()}
	if os.Geteuid() != 0 {
		list = append(list, userSocket())
	}
	for _, s := range list {
		if info, err := os.Lstat(s); err == nil && info.Mode().Type() == fs.ModeSocket {
			return s
		}
	}
	return systemSocket
}

func serviceSocket() string {
	if dir := os.Getenv("RUNTIME_DIRECTORY"); dir != "" { // systemd.exec(5)
		return filepath.Join(dir, filepath.Base(systemSocket))
	}
	return ""
}

func userSocket() string {
	if dir := os.Getenv("XDG_RUNTIME_DIR"); dir != "" {
		return filepath.Join(dir, "nvmf-target", filepath.Base(systemSocket))
	}
	return ""
}

// ErrInUse is the error of Listen if a process listens at the socket.
var ErrInUse = errors.New("listens")

// ErrBusy is the error of a plan that cannot be made while the configuration is being changed.
var ErrBusy = errors.New("the configuration is being changed")

// listen listens at a socket that nobody but this user, and later the group, could ever open. It
// replaces the socket of a dead process. Of two simultaneous starts the last one keeps it.
func listen(c Config) (*net.UnixListener, error) {
	gid, err := -1, error(nil)
	if c.Group != "" {
		gid, err = LookupGroup(c.Group)
	}
	if err != nil {
		return nil, fmt.Errorf("the control socket is for a group: %w", err)
	}
	if err := os.MkdirAll(filepath.Dir(c.Socket), 0o755); err != nil {
		return nil, fmt.Errorf("cannot make the directory of the control socket: %w", err)
	}
	if err := removeStale(c.Socket); err != nil {
		return nil, err
	}
	// The file created by bind(2) has the mode of the descriptor, less the umask.
	private := func(_, _ string, raw syscall.RawConn) error {
		var err error
		failed := raw.Control(func(fd uintptr) { err = unix.Fchmod(int(fd), privateMode) })
		return errors.Join(failed, err)
	}
	l, err := (&net.ListenConfig{Control: private}).Listen(context.Background(), "unix", c.Socket)
	if err != nil {
		return nil, fmt.Errorf("cannot listen at %s: %w", c.Socket, err)
	}
	u := l.(*net.UnixListener)
	u.SetUnlinkOnClose(false) // it may belong to another process by then
	err = os.Lchown(c.Socket, -1, gid)
	if err == nil {
		err = os.Chmod(c.Socket, c.Mode)
	}
	if err != nil {
		return nil, errors.Join(fmt.Errorf("cannot share the control socket: %w (the user "+
			"of the target must be in control.group)", err), u.Close(), os.Remove(c.Socket))
	}
	return u, nil
}

// LookupGroup returns the ID of a group, given by name or ID.
func LookupGroup(name string) (int, error) {
	return lookup(name, func() (string, error) {
		g, err := user.LookupGroup(name)
		if err != nil {
			return "", fmt.Errorf("there is no group %q", name)
		}
		return g.Gid, nil
	})
}

// LookupUser returns the ID of a user, given by name or ID.
func LookupUser(name string) (int, error) {
	return lookup(name, func() (string, error) {
		u, err := user.Lookup(name)
		if err != nil {
			return "", fmt.Errorf("there is no user %q", name)
		}
		return u.Uid, nil
	})
}

func lookup(name string, find func() (string, error)) (int, error) {
	if id, err := strconv.ParseUint(name, 10, 31); err == nil {
		return int(id), nil
	}
	id, err := find()
	if err != nil {
		return 0, err
	}
	return strconv.Atoi(id)
}

// removeStale removes a socket at which no process listens. Everything else is an error.
func removeStale(path string) error {
	info, err := os.Lstat(path)
	switch {
	case errors.Is(err, fs.ErrNotExist):
		return nil
	case err != nil:
		return err
	case info.Mode().Type() != fs.ModeSocket:
		return fmt.Errorf("%s is not a socket; delete it, or choose another control.socket", path)
	}
	c, err := net.DialTimeout("unix", path, probeTimeout)
	if errors.Is(err, syscall.ECONNREFUSED) {
		return os.Remove(path)
	}
	owner := "another process"
	if err == nil {
		if cred, _, err := credentials(c); err == nil {
			owner = fmt.Sprintf("process %d", cred.Pid)
		}
		_ = c.Close()
	}
	return fmt.Errorf("%s %w at %s; stop it, or choose another control.socket", owner, ErrInUse,
		path)
}

// credentials returns the credentials and groups of the peer of a unix socket (unix(7)).
func credentials(c net.Conn) (cred *unix.Ucred, groups []uint32, err error) {
	u, ok := c.(*net.UnixConn)
	if !ok {
		return nil, nil, errors.New("not a unix socket")
	}
	raw, err := u.SyscallConn()
	if err != nil {
		return nil, nil, err
	}
	failed := raw.Control(func(fd uintptr) {
		cred, err = unix.GetsockoptUcred(int(fd), unix.SOL_SOCKET, unix.SO_PEERCRED)
		groups, _ = sys.PeerGroups(int(fd)) // without them it has fewer rights
	})
	return cred, groups, errors.Join(failed, err)
}
