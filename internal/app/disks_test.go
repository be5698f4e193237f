package app

import (
	"context"
	"errors"
	"testing"
	"testing/synctest"
	"time"

	"github.com/nvmf-target/nvmf-target/internal/control"
	"github.com/nvmf-target/nvmf-target/internal/testutil"
)

// TestDiskLooks: one look at a time answers all that ask, and for some time after; who asks does
// not wait longer than he wants.
func TestDiskLooks(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		looks, end := 0, make(chan error)
		l := diskLooks{look: func() ([]control.Disk, error) {
			looks++
			return []control.Disk{{Name: "sda"}}, <-end
		}}
		asked := make(chan error)
		for range 3 {
			go func() {
				_, err := l.list(t.Context())
				asked <- err
			}()
		}
		ctx, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		if _, err := l.list(ctx); err == nil {
			t.Error("an answer before the look has ended")
		}
		want := errors.New("no sysfs")
		end <- want
		for range 3 {
			if err := <-asked; !errors.Is(err, want) {
				t.Error(err)
			}
		}
		time.Sleep(diskAge - 1)
		if _, err := l.list(t.Context()); !errors.Is(err, want) || looks != 1 {
			t.Errorf("%v, %d looks", err, looks)
		}
		time.Sleep(time.Nanosecond)
		go func() { end <- nil }()
		if list, err := l.list(t.Context()); err != nil || len(list) != 1 || looks != 2 {
			t.Errorf("%v, %v, %d looks", list, err, looks)
		}
	})
}

// TestControlDisks: a client sees the disks of this machine.
func TestControlDisks(t *testing.T) {
	_, c := controlled(t, Options{}, anyPort)
	want := testutil.Value(listDisks(nil))(t)
	if list, err := c.Disks(t.Context()); err != nil || len(list) != len(want) {
		t.Errorf("%+v, %v, want %+v", list, err, want)
	}
}
