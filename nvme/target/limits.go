package target

import "github.com/nvmf-target/nvmf-target/nvme/target/qos"

// SetHostLimits sets the limits of a host for all subsystems together, whether it is connected or
// not; without any the host has none. Commands that wait look at them at once.
func (t *Target) SetHostLimits(nqn string, l qos.Limits) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.shared.Hosts.SetLimits(nqn, l) {
		relink(t.handlers)
	}
}
