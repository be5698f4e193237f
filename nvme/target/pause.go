package target

import (
	"errors"
	"sync"
	"time"

	"github.com/nvmf-target/nvmf-target/nvme/target/dispatch"
)

// PauseNamespace makes commands for a namespace wait, each as long as its timeout allows, until
// ResumeNamespace. When it returns, the device has no I/O and no channel, so that its storage can
// be saved as it is. If the device does not finish its I/O in time, or hosts do not end their
// zero-copy reads and writes, PauseNamespace fails and the namespace is as before. A namespace that
// is paused already stays so; UpdateNamespace does not end it, a removal does.
func (t *Target) PauseNamespace(nqn string, nsid uint32) error {
	return t.changeNamespace(nqn, nsid, func(ns *namespace) error {
		if err := ns.quiesce(); err != nil {
			return err
		}
		ns.paused.Store(true)
		return nil
	})
}

// ResumeNamespace ends the pause of a namespace, if it is paused.
func (t *Target) ResumeNamespace(nqn string, nsid uint32) error {
	return t.changeNamespace(nqn, nsid, (*namespace).resume)
}

// PauseAll pauses all namespaces, as PauseNamespace does, and waits for their devices no longer
// than within. It leaves alone the namespaces that are paused already. release ends the pauses.
// After an error PauseAll has paused none.
func (t *Target) PauseAll(within time.Duration) (release func(), err error) {
	var list []*namespace
	for _, s := range *t.table.Load() {
		list = append(list, s.namespaces.Load().list...)
	}
	end := time.Now().Add(within)
	paused := make([]bool, len(list))
	errs := make([]error, len(list))
	inParallel(len(list), func(i int) { paused[i], errs[i] = list[i].pauseUntil(end) })
	release = func() {
		inParallel(len(list), func(i int) {
			if paused[i] {
				_ = list[i].change((*namespace).resume) // or it was removed
			}
		})
	}
	if err := errors.Join(errs...); err != nil {
		release()
		return nil, err
	}
	return release, nil
}

// inParallel calls fn with 0 to n-1 on a few goroutines and waits for them.
func inParallel(n int, fn func(i int)) {
	var wg sync.WaitGroup
	next := make(chan int)
	for range min(n, 32) {
		wg.Go(func() {
			for i := range next {
				fn(i)
			}
		})
	}
	for i := range n {
		next <- i
	}
	close(next)
	wg.Wait()
}

// pauseUntil pauses a namespace unless it is paused already, or was removed. It waits for the
// device until end.
func (ns *namespace) pauseUntil(end time.Time) (paused bool, err error) {
	if !ns.updating.TryLock() {
		return false, ns.fail(errors.New("it is being changed"))
	}
	defer ns.updating.Unlock()
	if ns.Retired() || ns.paused.Load() {
		return false, nil
	}
	left := max(time.Until(end), 0)
	if err := ns.quiesceWithin(left, left); err != nil {
		ns.proceed()
		return false, ns.fail(err)
	}
	ns.paused.Store(true)
	return true, nil
}

// resume ends a pause.
func (ns *namespace) resume() error {
	ns.paused.Store(false)
	return nil
}

// changeNamespace calls fn for a namespace, one at a time. Commands that wait since go on
// afterwards, unless the namespace is paused.
func (t *Target) changeNamespace(nqn string, nsid uint32, fn func(*namespace) error) error {
	ns, err := t.namespace(nqn, nsid)
	if err != nil {
		return err
	}
	return ns.change(fn)
}

// change is changeNamespace for a namespace that is known.
func (ns *namespace) change(fn func(*namespace) error) error {
	ns.updating.Lock()
	defer ns.updating.Unlock()
	if ns.Retired() {
		return ns.fail(errors.New("it was removed"))
	}
	err := fn(ns)
	ns.proceed()
	if err != nil {
		return ns.fail(err)
	}
	return nil
}

// proceed undoes quiesce, unless the namespace is paused.
func (ns *namespace) proceed() {
	if !ns.paused.Load() {
		ns.setQuiesce(dispatch.QuiesceNothing, ns.sub.t.drainDeadline)
	}
}
