package app

import (
	"encoding/json"
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"os/exec"
	"testing"
	"time"

	"github.com/nvmf-target/nvmf-target/config"
	"github.com/nvmf-target/nvmf-target/internal/control"
	"github.com/nvmf-target/nvmf-target/internal/state"
	"github.com/nvmf-target/nvmf-target/internal/testing/testutil"
)

// TestManagedCrash ends an operation before each of its steps, like a crash. The directory then has
// the configuration before the operation or after it. If the step fails instead, all is as before,
// on disk and in the target.
func TestManagedCrash(t *testing.T) {
	t.Parallel()
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
		testutil.Fails(t, op(), "Repeat the request", "operation %d is not durable", i)
		after := o.load()
		testutil.MustTrue(t, len(config.Diff(before, after)) != 0 && len(steps) >= 3,
			"operation %d changes nothing, or has the steps %q", i, steps)
		for j, found := range seen {
			if len(config.Diff(before, found)) > 0 && len(config.Diff(after, found)) > 0 {
				t.Errorf("operation %d, a crash before %s: neither old nor new", i, steps[j])
			}
		}
		o.onStep(nil)
		o.must(op())
		d := config.Diff(after, o.load())
		testutil.True(t, len(d) == 0, "operation %d again: %v", i, d)
		o.same()
	}
	for _, step := range []string{"mkdir", "write"} {
		o.fail(step, put(sub, ""), o.load())
	}
}

// fail makes a step of an operation fail.
func (o *orchestrated) fail(step string, op func() error, before config.Settings) {
	o.t.Helper()
	o.onStep(func(name string) error {
		if name == step {
			return errors.New("no space left on device")
		}
		return nil
	})
	testutil.Fails(o.t, op(), "no space left", "%s fails", step)
	d := config.Diff(before, o.load())
	testutil.True(o.t, len(d) == 0, "%s fails: the directory has %v", step, d)
	o.same()
}

func (o *orchestrated) onStep(fn func(string) error) {
	defer o.server.engine.Hold()()
	o.server.engine.OnFileStep = state.Direct
	if fn == nil {
		return
	}
	o.server.engine.OnFileStep = func(name string, do func() error) error {
		if err := fn(name); err != nil {
			return err
		}
		return do()
	}
}

// load returns the settings that a target started now would have.
func (o *orchestrated) load() config.Settings {
	o.t.Helper()
	c := testutil.Value(loader(o.file)())(o.t)
	return c.Settings()
}

// TestManagedKill kills a target while a client makes one request after another. The directory then
// has the objects acknowledged to the client, perhaps with the unanswered request.
func TestManagedKill(t *testing.T) {
	t.Parallel()
	o := newOrchestrated(t)
	o.stop()
	volume := fmt.Sprintf(`{"backend":"file","path":%q}`, o.volume("a"))
	ctx, sub := t.Context(), control.Object{Subsystem: volumeNQN}
	answered := 0
	request := func(n int) (err error) {
		switch n % 3 {
		case 1:
			_, err = o.client.Put(ctx, sub, json.RawMessage(`{"allow_any_host":true}`))
		case 2:
			_, err = o.client.Put(ctx, control.Object{Subsystem: volumeNQN, NSID: 1},
				json.RawMessage(volume))
		case 0:
			_, err = o.client.Delete(ctx, sub, true)
		}
		return err
	}
	for range 4 {
		child := exec.CommandContext(ctx, os.Args[0])
		child.Env = append(os.Environ(), serveFile+"="+o.file)
		out := testutil.Value(child.StdoutPipe())(o.t)
		o.must(child.Start())
		testutil.MustEqual(t, testutil.Err(out.Read(make([]byte, 1))), nil,
			"the target does not start")
		testutil.Until(t, "the control interface answers", func() bool {
			_, err := control.GetStatus.From(ctx, o.client)
			return err == nil
		})
		kill := time.AfterFunc(time.Duration(rand.IntN(200))*time.Millisecond, func() {
			_ = child.Process.Kill()
		})
		for request(answered+1) == nil {
			answered++
		}
		kill.Stop()
		_ = child.Process.Kill()
		_ = child.Wait()
		c := testutil.Value(loader(o.file)())(o.t)
		objects := len(c.Subsystems)
		if objects > 0 {
			objects += len(c.Subsystems[0].Namespaces)
		}
		testutil.MustTrue(t, objects == answered%3 || objects == (answered+1)%3,
			"%d objects after %d answers", objects, answered)
		answered = objects // an equal state
	}
}
