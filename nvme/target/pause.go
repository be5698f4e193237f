package target

import "errors"

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
		ns.setPaused(true)
		return nil
	})
}

// ResumeNamespace ends the pause of a namespace, if it is paused.
func (t *Target) ResumeNamespace(nqn string, nsid uint32) error {
	return t.changeNamespace(nqn, nsid, func(ns *namespace) error {
		ns.setPaused(false)
		return nil
	})
}

// changeNamespace calls fn for a namespace, one at a time. Commands that wait since go on
// afterwards, unless the namespace is paused.
func (t *Target) changeNamespace(nqn string, nsid uint32, fn func(*namespace) error) error {
	ns, err := t.namespace(nqn, nsid)
	if err != nil {
		return err
	}
	ns.updating.Lock()
	defer ns.updating.Unlock()
	if ns.users.isRetired() {
		return ns.fail(errors.New("it was removed"))
	}
	err = fn(ns)
	ns.proceed()
	if err != nil {
		return ns.fail(err)
	}
	return nil
}

// proceed ends what quiesce has begun, unless the namespace is paused.
func (ns *namespace) proceed() {
	if !ns.isPaused() {
		ns.setQuiesce(quiesceNothing, ns.sub.t.drainDeadline)
	}
}

func (ns *namespace) setPaused(paused bool) {
	ns.state.mu.Lock()
	defer ns.state.mu.Unlock()
	ns.state.paused = paused
}

func (ns *namespace) isPaused() bool {
	ns.state.mu.Lock()
	defer ns.state.mu.Unlock()
	return ns.state.paused
}
