package target

import (
	"time"

	"github.com/nvmf-target/nvmf-target/nvme/target/namespaces"
)

// PauseNamespace makes commands for a namespace wait, each as long as its timeout allows, until
// ResumeNamespace. When it returns, the device has no I/O and no channel, so that its storage can
// be saved as it is. If the device does not finish its I/O in time, or hosts do not end their
// zero-copy reads and writes, PauseNamespace fails and the namespace is as before. A namespace that
// is paused already stays so; UpdateNamespace does not end it, a removal does.
func (t *Target) PauseNamespace(nqn string, nsid uint32) error {
	return t.changeNamespace(nqn, nsid, (*namespaces.Namespace).Pause)
}

// ResumeNamespace ends the pause of a namespace, if it is paused.
func (t *Target) ResumeNamespace(nqn string, nsid uint32) error {
	return t.changeNamespace(nqn, nsid, (*namespaces.Namespace).Resume)
}

// PauseAll pauses all namespaces, see namespaces.PauseAll.
func (t *Target) PauseAll(within time.Duration) (release func(), err error) {
	var list []*namespaces.Namespace
	for _, s := range *t.table.Load() {
		list = append(list, s.Namespaces.Load().List...)
	}
	return namespaces.PauseAll(list, within)
}

// changeNamespace calls fn for a namespace.
func (t *Target) changeNamespace(nqn string, nsid uint32,
	fn func(*namespaces.Namespace) error,
) error {
	ns, err := t.namespace(nqn, nsid)
	if err != nil {
		return err
	}
	return fn(ns)
}
