package app

import (
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"strings"

	"golang.org/x/sys/unix"

	"github.com/nvmf-target/nvmf-target/config"
)

// Check reads a configuration file and reports everything that is wrong with it, on this machine
// too: files, directories and CPUs that are not there. It changes nothing. A nil error means that
// "serve" can use the file.
func Check(file string, environ []string, out io.Writer) error {
	c, err := config.Load(file, environ, rules)
	if err != nil {
		return err
	}
	if ps := probe(c); len(ps) > 0 {
		return ps
	}
	namespaces := 0
	for _, s := range c.Subsystems {
		namespaces += len(s.Namespaces)
	}
	_, err = fmt.Fprintf(out, "%s: valid: %s, %s, %s\n", file, count(len(c.Listeners), "listener"),
		count(len(c.Subsystems), "subsystem"), count(namespaces, "namespace"))
	return err
}

func count(n int, what string) string {
	if n == 1 {
		return "1 " + what
	}
	return fmt.Sprintf("%d %ss", n, what)
}

// probe looks at what the configuration names on this machine.
func probe(c *config.Config) config.Problems {
	var ps config.Problems
	var set unix.CPUSet
	if err := unix.SchedGetaffinity(0, &set); err == nil {
		for i, cpu := range c.Reactors.CPUs {
			if !set.IsSet(cpu) {
				ps = append(ps,
					c.Problem(fmt.Sprintf("reactors.cpus[%d]", i),
						fmt.Sprintf("CPU %d does not exist or this process may not use it", cpu),
						"Choose among those that \"taskset -cp $$\" prints."))
			}
		}
	}
	type user struct {
		info os.FileInfo
		path string
	}
	var files []user
	for i, s := range c.Subsystems {
		for j, n := range s.Namespaces {
			paths, layers := n.Layers(fmt.Sprintf("subsystems[%d].namespaces[%d]", i, j))
			path, last := paths[len(paths)-1], layers[len(layers)-1]
			var info os.FileInfo
			var what, mend string
			switch last.Backend {
			case "file":
				info, what, mend = probeFile(last, n.ReadOnly)
			case "block":
				info, what, mend = probeBlock(last, n.ReadOnly)
			case "nvme":
				info, what, mend = probeNVMe(last, n.ReadOnly)
			}
			if what != "" {
				ps = append(ps, c.Problem(path+".path", what, mend))
			}
			for _, f := range files {
				if info != nil && os.SameFile(info, f.info) {
					ps = append(ps,
						c.Problem(path+".path", "is the same file as that of "+f.path,
							"Give each namespace its own."))
				}
			}
			if info != nil {
				files = append(files, user{info, path})
			}
		}
	}
	return ps
}

// probeFile says what is wrong with the file of a namespace and how to mend it. info is nil if
// there is no file yet.
func probeFile(n *config.Storage, readOnly bool) (info os.FileInfo, what, mend string) {
	info, err := os.Stat(n.Path)
	if errors.Is(err, fs.ErrNotExist) {
		what, mend = probeNewFile(n, readOnly)
		return nil, what, mend
	}
	if err != nil {
		return nil, err.Error(), "Let the user that runs the target reach it."
	}
	switch {
	case info.IsDir():
		return nil, fmt.Sprintf("%q is a directory", n.Path), "Name a file in it."
	case info.Mode()&os.ModeCharDevice != 0 && strings.HasPrefix(filepath.Base(n.Path), "dax"):
		return nil, fmt.Sprintf("%q is persistent memory without a file system", n.Path),
			"Make it one of mode fsdax (ndctl), mount ext4 or xfs there with -o dax, and name a file in it."
	case !info.Mode().IsRegular():
		return nil, fmt.Sprintf("%q is not a regular file", n.Path), "Name a regular file."
	case info.Size() == 0 && n.Size == 0:
		return info, fmt.Sprintf("%q is empty and no size is given", n.Path),
			"Add size, for instance size: 10GiB."
	case info.Size() != 0 && n.Size != 0 && info.Size() != int64(n.Size):
		return info, fmt.Sprintf("%q has %d bytes, not %d", n.Path, info.Size(), n.Size),
			"Delete size to take over that of the file."
	}
	if err := mayOpen(n.Path, readOnly); err != nil {
		return info, fmt.Sprintf("%q cannot be opened: %v", n.Path, err),
			"Give the user that runs the target the right to it, or set read_only: true."
	}
	var stx unix.Statx_t
	if n.DAX == "on" && unix.Statx(unix.AT_FDCWD, n.Path, 0, 0, &stx) == nil &&
		stx.Attributes&unix.STATX_ATTR_DAX == 0 {
		return info,
			fmt.Sprintf("%q is not on persistent memory, or that is not mounted with -o dax",
				n.Path), "Put it there, or delete dax."
	}
	return info, "", ""
}

// mayOpen is the error that opening path would give for lack of rights.
func mayOpen(path string, readOnly bool) error {
	mode := uint32(unix.R_OK)
	if !readOnly {
		mode |= unix.W_OK
	}
	return unix.Access(path, mode)
}

func probeNewFile(n *config.Storage, readOnly bool) (what, mend string) {
	dir := filepath.Dir(n.Path)
	info, err := os.Stat(dir)
	switch {
	case err != nil || !info.IsDir():
		return fmt.Sprintf("directory %q does not exist", dir), "Create it: mkdir -p " + dir + "."
	case readOnly:
		return fmt.Sprintf("%q does not exist, and a read-only namespace is not created", n.Path),
			"Create the file, or delete read_only."
	case n.Size == 0:
		return fmt.Sprintf("%q does not exist and no size is given", n.Path),
			"Add size to create it, for instance size: 10GiB."
	}
	if err := unix.Access(dir, unix.W_OK|unix.X_OK); err != nil {
		return fmt.Sprintf("%q cannot be created: %v", n.Path, err),
			"Give the user that runs the target the right to write in " + dir + "."
	}
	return "", ""
}
