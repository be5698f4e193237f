package app

import (
	"errors"
	"fmt"
	"io/fs"
	"net/http"
	"os"

	"github.com/nvmf-target/nvmf-target/backend"
	"github.com/nvmf-target/nvmf-target/config"
	"github.com/nvmf-target/nvmf-target/internal/control"
)

// resize changes the size of a namespace in a file. Everything else is resized by its owner, or by
// the configuration, and the target notices. Commands of hosts wait meanwhile: what is cut off must
// not be written again.
func (s *Server) resize(r control.Resize) error {
	s.applying.Lock()
	defer s.applying.Unlock()
	if s.stopping {
		return errStopped
	}
	size, err := config.ParseSize(r.Size)
	if err != nil {
		return conflict("size", err.Error(), "Write, for instance, 20GiB.")
	}
	v := s.namespaces.served(config.Object{
		Kind: config.KindNamespace, NQN: r.Subsystem, NSID: r.NSID,
	})
	if v == nil {
		return conflict("nsid", "the namespace is pending or was removed",
			"`nvmf-target namespaces` lists them.")
	}
	c, m := s.current(), config.Managed{NQN: r.Subsystem, NSID: r.NSID}
	file := m.File(c.Managed)
	edit, err := resizedFile(c, m, file, int64(size))
	if err != nil {
		return fmt.Errorf("the file %s of the namespace: %w", file, err)
	}
	if err := mayResize(v, int64(size), r.Shrink, edit != nil); err != nil {
		return err
	}
	if edit != nil { // which makes it larger, too
		if _, err := s.makeEdit(c, m, edit); err != nil {
			return err
		}
		if v = s.namespaces.served(v.name()); v == nil || v.dev.Info().Size <= int64(size) {
			return nil
		}
	}
	return s.namespaces.resize(v, int64(size))
}

// resizedFile is the edit that gives a namespace another size in its file in the managed directory.
// It is nil if there is no such file, or no size in it.
func resizedFile(c *config.Config, m config.Managed, file string, size int64) (*config.Edit,
	error,
) {
	if c.Managed == "" {
		return nil, nil
	}
	content, err := os.ReadFile(file)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	}
	if err != nil {
		return nil, err
	}
	content, ok, err := m.WithSize(content, size)
	if !ok {
		return nil, err
	}
	return &config.Edit{Path: file, Content: content}, nil
}

// served returns the namespace with this name if it has its storage.
func (ns *namespaces) served(name config.Object) *served {
	ns.mu.Lock()
	defer ns.mu.Unlock()
	if v := ns.list[name]; v != nil && v.dev != nil {
		return v
	}
	return nil
}

// resize closes the storage of a namespace, resizes it, and opens it again.
func (ns *namespaces) resize(v *served, size int64) error {
	st, _ := v.backing()
	again := *v.namespace
	return ns.exchange(v, &again, func(old backend.Device) (backend.Device, error) {
		if err := old.Close(); err != nil {
			return old, err
		}
		failed := st.resize(ns.s.env(v.Namespace), size)
		dev, err := ns.s.opts.OpenDevice(v.Namespace)
		if err != nil {
			return nil, errors.Join(failed, err)
		}
		return dev, failed
	})
}

func conflict(place, what, hint string) error {
	p := control.NewProblem(http.StatusConflict, what, hint)
	p.Place = place
	return p
}

// mayResize says why a namespace cannot have another size. With configured, its configuration gets
// the size as well.
func mayResize(v *served, size int64, shrink, configured bool) error {
	st, _ := v.backing()
	info := v.dev.Info()
	switch {
	case st.resize == nil && v.volatile():
		return conflict("subsystem", "its storage is memory, which keeps its size",
			"Change size in the configuration and restart the target: the content is lost.")
	case st.resize == nil && st.path == nil:
		return conflict("subsystem", "its storage has the size of the configuration",
			"Change size there and reload.")
	case st.resize == nil:
		return conflict("subsystem", "its storage is a device, which has its own size",
			"Resize the volume (lvextend, for instance): the target notices it in a second.")
	case v.ReadOnly:
		return conflict("subsystem", "it is read-only", "Delete read_only and reload.")
	case info.Offline || info.Degraded:
		return conflict("subsystem", "its storage is offline or degraded", "Repair that first.")
	case st.least() > size && !configured:
		return conflict("size", fmt.Sprintf("the configuration says that the file has at least %d "+
			"bytes", st.least()), "Reduce size there, reload, and try again.")
	case size < info.Size && !shrink:
		return conflict("size", fmt.Sprintf("it has %d bytes: what is in the last %d of them "+
			"would be lost for good", info.Size, info.Size-size),
			"Shrink first, on a host, what is on it (file system, partitions). Then use --shrink.")
	}
	if err := backend.CheckGeometry(size, info.BlockSize); err != nil {
		return conflict("size", err.Error(), "")
	}
	return nil
}
