package e2e

import (
	"slices"
	"strconv"
	"sync"
	"testing"

	"github.com/nvmf-target/nvmf-target/backend"
	"github.com/nvmf-target/nvmf-target/backend/rbd"
	"github.com/nvmf-target/nvmf-target/internal/observed"
	"github.com/nvmf-target/nvmf-target/internal/rados"
	"github.com/nvmf-target/nvmf-target/internal/testing/cephtest"
	"github.com/nvmf-target/nvmf-target/internal/testing/testutil"
)

// TestCeph serves an image on two reactors. Its hosts verify random data on several queues, also
// while the cluster does not answer for a while.
func TestCeph(t *testing.T) {
	t.Parallel() // it mostly waits
	c := cephtest.New(t)
	for i, v := range Plain {
		t.Run(v.Name, func(t *testing.T) {
			o := v.Options
			o.Reactors = 2
			o.Devices = []backend.Device{testutil.Value(rbd.Open(rbd.Config{
				Image: c.Image(t, "8M", []string{"layering", "exclusive-lock"}[i]), BlockSize: 512,
				Ceph: rados.Access{Conf: c.Conf(), User: "admin"},
			}))(t)}
			h := New(t, o)
			ctrl := h.Dial(v)
			check := func(rounds int, busy func()) {
				var wg sync.WaitGroup
				for i := range 4 {
					q := testutil.Value(ctrl.OpenQueue(testutil.Context(t), uint16(i+1), 16))(t)
					buf := h.Buffer(ctrl, 4<<15)
					wg.Go(func() {
						testutil.Equal(t, verify(q, uint64(i)*4096, buf, rounds), nil, "queue "+
							strconv.Itoa(i))
						testutil.Check(t, q.Close())
					})
				}
				busy()
				wg.Wait()
			}
			check(4, func() {})
			h.Until("the queue IDs are free", func() bool { return h.Target.Sessions() == 1 })
			c.Pause(t, "osd")
			check(2, func() {
				testutil.Until(t, "commands wait for the cluster", func() bool {
					list := testutil.Value(h.Target.Connections(testutil.Context(t)))(t)
					return slices.ContainsFunc(list, func(c observed.Connection) bool {
						return c.QID > 0 && c.InFlight > 0
					})
				})
				c.Continue(t, "osd")
			})
		})
	}
}
