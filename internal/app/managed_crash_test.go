package app

import (
	"encoding/json"
	"errors"
	"fmt"
	"strings"
	"testing"

	"github.com/nvmf-target/nvmf-target/config"
	"github.com/nvmf-target/nvmf-target/internal/control"
)

// TestManagedCrash ends an operation before each of its steps, as a crash does: what the directory
// has then is the configuration before the operation or after it. If the step fails instead, all
// is as before, on disk and in the target.
func TestManagedCrash(t *testing.T) {
	o := newOrchestrated(t)
	sub, other := control.Object{Subsystem: volumeNQN}, control.Object{Subsystem: testNQN}
	ns := control.Object{Subsystem: volumeNQN, NSID: 1}
	volume := fmt.Sprintf(`{"backend":"file","path":%q}`, o.volume("a"))
	put := func(obj control.Object, body string) func() error {
		return func() error {
			_, err := o.client.Put(t.Context(), obj, json.RawMessage(body))
			return err
		}
	}
	remove := func(obj control.Object, recursive bool) func() error {
		return func() error {
			_, err := o.client.Delete(t.Context(), obj, recursive)
			return err
		}
	}
	for i, op := range []func() error{
		put(other, `{"allow_any_host":true}`), put(sub, `{"serial":"1"}`), put(sub, `{"serial":"2"}`),
		put(ns, volume), put(control.Object{Subsystem: volumeNQN, Host: guestNQN}, ""),
		put(ns, volume[:len(volume)-1]+`,"read_only":true}`),
		remove(ns, false), put(ns, volume), remove(sub, true), remove(other, false),
	} {
		before, steps, seen := o.load(), []string(nil), []config.Settings(nil)
		o.fail("rename", op, before)
		o.onStep(func(name string) error {
			steps, seen = append(steps, name), append(seen, o.load())
			if name == "sync" {
				return errors.New("no space left on device")
			}
			return nil
		})
		if err := op(); err == nil || !strings.Contains(err.Error(), "Repeat the request") {
			t.Errorf("operation %d is not durable: %v", i, err)
		}
		after := o.load()
		if len(config.Diff(before, after)) == 0 || len(steps) < 3 {
			t.Fatalf("operation %d changes nothing, or has the steps %q", i, steps)
		}
		for j, found := range seen {
			if len(config.Diff(before, found)) > 0 && len(config.Diff(after, found)) > 0 {
				t.Errorf("operation %d, a crash before %s: neither old nor new", i, steps[j])
			}
		}
		o.onStep(nil)
		o.must(op())
		if d := config.Diff(after, o.load()); len(d) > 0 {
			t.Errorf("operation %d again: %v", i, d)
		}
		o.same()
	}
	for _, step := range []string{"mkdir", "write"} {
		o.fail(step, put(sub, ""), o.load())
	}
}

// fail lets a step of an operation fail.
func (o *orchestrated) fail(step string, op func() error, before config.Settings) {
	o.t.Helper()
	o.onStep(func(name string) error {
		if name == step {
			return errors.New("no space left on device")
		}
		return nil
	})
	if err := op(); err == nil || !strings.Contains(err.Error(), "no space left") {
		o.t.Errorf("%s fails: %v", step, err)
	}
	if d := config.Diff(before, o.load()); len(d) > 0 {
		o.t.Errorf("%s fails: the directory has %v", step, d)
	}
	o.same()
}

func (o *orchestrated) onStep(fn func(string) error) {
	o.server.applying.Lock()
	defer o.server.applying.Unlock()
	o.server.onFileStep = fn
}

// load is what a target that starts now would serve.
func (o *orchestrated) load() config.Settings {
	o.t.Helper()
	c, err := loader(o.file)()
	o.must(err)
	return c.Settings()
}
