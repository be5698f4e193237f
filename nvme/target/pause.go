package target

import (
	"errors"
	"sync"
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

// pausedAtOnce bounds PauseAll: each namespace takes a goroutine, and a post to every reactor.
const pausedAtOnce = 256

// PauseAll pauses all namespaces, as PauseNamespace does, and waits for their devices no longer
// than within. It leaves alone the namespaces that are paused already. release ends the pauses.
// After an error PauseAll has paused none.
func (t *Target) PauseAll(within time.Duration) (release func(), err error) {
	var list []*namespaces.Namespace
	for _, s := range *t.table.Load() {
		list = append(list, s.Namespaces.Load().List...)
	}
	end := time.Now().Add(within)
	paused := make([]bool, len(list))
	errs := make([]error, len(list))
	each := func(do func(i int, ns *namespaces.Namespace)) {
		var wg sync.WaitGroup
		places := make(chan struct{}, pausedAtOnce)
		for i, ns := range list {
			places <- struct{}{}
			wg.Go(func() {
				do(i, ns)
				<-places
			})
		}
		wg.Wait()
	}
	each(func(i int, ns *namespaces.Namespace) { paused[i], errs[i] = ns.PauseUntil(end) })
	release = func() {
		each(func(i int, ns *namespaces.Namespace) {
			if paused[i] {
				_ = ns.Resume() // fails only if it was removed
			}
		})
	}
	if err := errors.Join(errs...); err != nil {
		release()
		return nil, err
	}
	return release, nil
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
