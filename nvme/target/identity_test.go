package target

import (
	"testing"

	"github.com/nvmf-target/nvmf-target/nvme"
)

// TestNeverEnabled: an association whose controller is not enabled ends after two minutes, whatever
// its keep alive timeout and however much its host asks; so does one that is disabled later.
func TestNeverEnabled(t *testing.T) {
	for name, change := range map[string]func(*connectArgs){
		"NVM":                  func(*connectArgs) {},
		"NVM with keep alive":  func(a *connectArgs) { a.kato = 5000 },
		"discovery":            func(a *connectArgs) { a.sub = nvme.DiscoveryNQN },
		"discovery, long KATO": func(a *connectArgs) { a.sub, a.kato = nvme.DiscoveryNQN, 1e9 },
	} {
		t.Run(name, func(t *testing.T) {
			r := newHarness(t, 1, ramSubsystem(t, 1))
			a := adminArgs(testSub)
			change(&a)
			connect := func() *host {
				h := &host{r: r, args: a, admin: r.dial(0)}
				r.ok(h.admin, a.command())
				return h
			}
			idle, late, disabled := connect(), connect(), connect()
			enable := propertySetCommand(nvme.PropertyCC, uint64(nvme.CCLinux))
			r.ok(disabled.admin, enable)
			for range 119 {
				r.w.Advance(1e9)
				idle.csts()
				r.ok(disabled.admin, identifyCommand(nvme.CNSController, 0))
			}
			if idle.admin.Closed() || late.admin.Closed() {
				t.Fatal("ended early")
			}
			r.ok(late.admin, propertySetCommand(nvme.PropertyCC, uint64(nvme.CCLinux)))
			r.ok(disabled.admin, propertySetCommand(nvme.PropertyCC, 0))
			r.w.Advance(1e9)
			if !idle.admin.Closed() || late.admin.Closed() || disabled.admin.Closed() {
				t.Fatalf("closed: never enabled %v, enabled %v, disabled %v", idle.admin.Closed(),
					late.admin.Closed(), disabled.admin.Closed())
			}
			for range 119 {
				r.w.Advance(1e9)
				r.ok(late.admin, identifyCommand(nvme.CNSController, 0))
			}
			if late.admin.Closed() || !disabled.admin.Closed() {
				t.Errorf("closed: enabled %v, disabled %v", late.admin.Closed(),
					disabled.admin.Closed())
			}
		})
	}
}
