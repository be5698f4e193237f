package volumes

import (
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"

	"github.com/nvmf-target/nvmf-target/backend"
	"github.com/nvmf-target/nvmf-target/backend/rbd"
	"github.com/nvmf-target/nvmf-target/config"
	"github.com/nvmf-target/nvmf-target/internal/doctor"
	"github.com/nvmf-target/nvmf-target/internal/rados"
	"github.com/nvmf-target/nvmf-target/internal/storage"
)

// Probe reports problems with the storage of a configuration on this machine. It changes nothing.
func Probe(c *config.Config) (ps config.Problems) {
	var known []stack
	taken, images := map[uint64]*growth{}, map[string]*Namespace{}
	for _, n := range All(c) {
		found, r := probe(c, n)
		ps = append(append(ps, found...), probeSpace(c, n, r.Space, taken)...)
		if o := images[r.Identity]; o != nil {
			_, key := n.backing()
			ps = append(ps, c.Problem(key+".image", fmt.Sprintf("namespace %d of %s has the same "+
				"image as namespace %d of %s", n.NSID, n.NQN, o.NSID, o.NQN),
				"Give each namespace an image of its own."))
		} else if r.Identity != "" {
			images[r.Identity] = n
		}
		if s, ok := stackOf(n); ok {
			ps = append(ps, s.overlaps(c, known)...)
			known = append(known, s)
		}
	}
	return ps
}

// clusters lists the access to the Ceph clusters of the gateway and of images, each once. gateway
// is zero if the target is none.
func clusters(c *config.Config) (list []rados.Access, gateway rados.Access) {
	g := &c.Group
	if g.Name != "" {
		gateway = rados.Access{Conf: g.Conf, User: g.User, Keyring: g.Keyring}
		list = append(list, gateway)
	}
	for _, n := range All(c) {
		if s, _ := n.backing(); s.ceph != nil && !slices.Contains(list, *s.ceph) {
			list = append(list, *s.ceph)
		}
	}
	return list, gateway
}

// Findings returns the findings of doctor about these clusters. Probe reports the clusters of
// images that cannot be used.
func Findings(c *config.Config) (list []doctor.Finding) {
	all, gateway := clusters(c)
	for _, at := range all {
		add := func(s doctor.Severity, found, why, fix string) {
			list = append(list, doctor.Finding{
				Check: "ceph", Severity: s, Found: found, Why: why, Fix: fix,
			})
		}
		warn := func(where string, err error, why string) {
			var r backend.Report
			r.Add(err)
			add(doctor.Warning, where+r.Errors[0].What, why, r.Errors[0].Hint)
		}
		a, err := rbd.Examine(at)
		switch {
		case a.Library != "":
		case at == gateway:
			warn("the cluster of the section group ", err, "This gateway takes no group.")
			continue
		default:
			continue
		}
		switch {
		case a.Fences == nil:
			add(doctor.OK, fmt.Sprintf("client.%s of %s may fence its connections, by librbd %s",
				at.User, at.Conf, a.Library), "", "")
		case at == gateway:
			warn("", a.Fences, "This gateway cannot take groups over from one that fails.")
		default:
			warn("", a.Fences, "A write that takes longer than io_timeout stays without an answer.")
		}
		switch {
		case err != nil:
			add(doctor.Note, err.Error(), "Fences of this machine are not known.",
				"ceph osd blocklist ls, as administrator")
		case len(a.Fenced) > 0:
			add(doctor.Note, fmt.Sprintf("%d fenced connections of this machine at %s: %s",
				len(a.Fenced), at.Conf, strings.Join(a.Fenced, ", ")),
				"The target fences a connection that does not answer for io_timeout; others are "+
					"fenced by other clients.",
				"nothing, if the log of the target explains them")
		}
	}
	return list
}

// ProbeOne reports problems with the storage of one namespace while the others are served.
func ProbeOne(c *config.Config, n *Namespace) config.Problems {
	ps, _ := probe(c, n)
	var known []stack
	for _, o := range All(c) {
		if s, ok := stackOf(o); ok && o.Name() != n.Name() {
			known = append(known, s)
		}
	}
	if s, ok := stackOf(n); ok {
		ps = append(ps, s.overlaps(c, known)...)
	}
	return ps
}

// probe looks at the storage of a namespace. Absence is a warning: the namespace is pending then.
func probe(c *config.Config, n *Namespace) (ps config.Problems, r backend.Report) {
	s, key := n.backing()
	at := env{readOnly: n.ReadOnly, engine: c.Disks, log: slog.New(slog.DiscardHandler)}
	name := "it"
	switch {
	case n.Path() != "":
		name, key = strconv.Quote(n.Path()), key+".path"
	case n.Image() != "":
		name, key = strconv.Quote(n.Image()), key+".image"
	}
	r = s.probe(at)
	pending := len(r.Errors) > 0 && absent(n, at)
	for _, p := range r.Errors {
		if pending || p.Offline {
			ps = append(ps, c.Warning(key,
				name+" "+p.What+"; the namespace is pending until it is there", p.Hint))
		} else {
			problem := c.Problem(key, name+" "+p.What, p.Hint)
			problem.InUse = p.InUse
			ps = append(ps, problem)
		}
	}
	for _, p := range r.Warnings {
		ps = append(ps, c.Warning(key, name+" "+p.What, p.Hint))
	}
	return ps, r
}

// growth is the space of a file system that namespaces may take in bytes, at once and in time.
type growth struct{ atOnce, all int64 }

// probeSpace adds a namespace to the others on the same file system, and reports the first one that
// no longer fits. A namespace that does not fit alone has been reported.
func probeSpace(c *config.Config, n *Namespace, s backend.Space,
	taken map[uint64]*growth,
) config.Problems {
	if s.Growth == 0 || s.Growth > s.Free {
		return nil
	}
	g := taken[s.FileSystem]
	if g == nil {
		g = &growth{}
		taken[s.FileSystem] = g
	}
	before := *g
	g.all += s.Growth
	if s.AtOnce {
		g.atOnce += s.Growth
	}
	_, key := n.backing()
	key += ".path"
	what := func(verb string, bytes int64) string {
		return fmt.Sprintf("%q and the files before it on its file system %s %d more bytes, and "+
			"that has %d free", n.Path(), verb, bytes, s.Free)
	}
	switch {
	case before.atOnce <= s.Free && g.atOnce > s.Free:
		return config.Problems{c.Problem(key, what("need", g.atOnce),
			"Make room, or make them smaller, or use preallocate: sparse.")}
	case before.all <= s.Free && g.all > s.Free:
		return config.Problems{c.Warning(key, what("may take", g.all),
			"Make room, or make them smaller: writes fail when the file system is full.")}
	}
	return nil
}

// stack has the layers of storage that back a namespace.
type stack struct {
	*storage.Stack
	n *Namespace
}

// stackOf finds the storage that backs a namespace; false if it has no path, or nothing is there.
func stackOf(n *Namespace) (stack, bool) {
	s, err := storage.Linux().StackOf(n.BlockPath())
	return stack{s, n}, err == nil
}

// overlaps reports the namespaces among others that are on the same storage.
func (s stack) overlaps(c *config.Config, others []stack) (ps config.Problems) {
	_, key := s.n.backing()
	for _, o := range others {
		if where, ok := s.Overlaps(o.Stack); ok {
			ps = append(ps, c.Problem(key+".path", fmt.Sprintf(
				"namespace %d of %s is on the same storage as namespace %d of %s: %s", s.n.NSID,
				s.n.NQN, o.n.NSID, o.n.NQN, where), "Give each namespace storage of its own."))
		}
	}
	return ps
}

// absent reports whether the storage of a namespace is missing rather than wrong: nothing is at its
// path and nothing will be created there, or the device at its path is empty or cannot be opened
// because its hardware is missing or does not answer.
func absent(n *Namespace, at env) bool {
	s, _ := n.backing()
	path := n.Path()
	if path == "" {
		return false
	}
	info, err := os.Stat(path)
	switch {
	case errors.Is(err, fs.ErrNotExist) && s.creates != nil && s.creates(at):
		if _, err := os.Lstat(path); err == nil {
			return true // a link to nothing, where no file is created
		}
		_, err = os.Stat(filepath.Dir(path))
		return errors.Is(err, fs.ErrNotExist)
	case err != nil || info.Mode()&fs.ModeDevice == 0:
		return errors.Is(err, fs.ErrNotExist)
	case s.device == nil || !s.device(path):
		return false
	}
	fd, err := unix.Open(path, unix.O_RDONLY|unix.O_NONBLOCK|unix.O_CLOEXEC, 0)
	if err != nil {
		return offline(err)
	}
	defer func() { _ = unix.Close(fd) }()
	size, err := unix.Seek(fd, 0, unix.SEEK_END) // 0: a loop device that has no file, for instance
	return err == nil && size == 0 && info.Mode()&fs.ModeCharDevice == 0
}

// offline reports whether err means that the device is missing or does not answer.
func offline(err error) bool {
	return slices.ContainsFunc(
		[]error{unix.ENXIO, unix.ENODEV, unix.ENOMEDIUM, unix.EIO, backend.ErrOffline},
		func(e error) bool { return errors.Is(err, e) })
}
