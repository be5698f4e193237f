package volumes

import (
	"errors"
	"fmt"
	"net/http"

	"github.com/nvmf-target/nvmf-target/backend"
	"github.com/nvmf-target/nvmf-target/config"
	"github.com/nvmf-target/nvmf-target/internal/control"
)

// served returns the namespace with this name if it has its storage.
func (vs *Volumes) served(name config.Object) *volume {
	vs.mu.Lock()
	defer vs.mu.Unlock()
	if v := vs.list[name]; v != nil && v.dev != nil {
		return v
	}
	return nil
}

// Size returns the size of the storage of a namespace, in bytes. The error is a control.Problem.
func (vs *Volumes) Size(name config.Object) (int64, error) {
	v := vs.served(name)
	if v == nil {
		return 0, conflict("nsid", "the namespace is pending or was removed",
			"`nvmf-target namespaces` lists them.")
	}
	return v.dev.Info().Size, nil
}

// Resize changes the size of a namespace in a file, which MayResize allows. It closes the storage,
// resizes it and opens it again. Commands of hosts wait meanwhile: no command may write beyond the
// new end afterwards.
func (vs *Volumes) Resize(name config.Object, size int64) error {
	v := vs.served(name)
	st, _ := v.backing()
	again := *v.Namespace
	return vs.exchange(v, &again, func(old backend.Device) (backend.Device, error) {
		if err := old.Close(); err != nil {
			return old, err
		}
		failed := st.resize(vs.env(v.Namespace), size)
		dev, err := vs.Open(v.Namespace.Namespace)
		if err != nil {
			return nil, errors.Join(failed, err)
		}
		return dev, failed
	})
}

func conflict(place, what, hint string) error {
	return control.NewProblem(http.StatusConflict, what, hint).At(place)
}

// MayResize returns an error, a control.Problem, if a served namespace cannot have another size.
// With configured, its configuration gets the size as well.
func (vs *Volumes) MayResize(name config.Object, size int64, shrink, configured bool) error {
	v := vs.served(name)
	st, _ := v.backing()
	info := v.dev.Info()
	switch {
	case st.resize == nil && v.Memory() > 0:
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
