package verbstest_test

import (
	"testing"

	"golang.org/x/sys/unix"

	"github.com/nvmf-target/nvmf-target/fabric/rdma/verbs"
	"github.com/nvmf-target/nvmf-target/internal/testing/testutil"
	"github.com/nvmf-target/nvmf-target/internal/testing/verbsconf"
	"github.com/nvmf-target/nvmf-target/internal/testing/verbstest"
)

func TestMain(m *testing.M) { testutil.Main(m) }

func TestConformance(t *testing.T) {
	for _, c := range []struct {
		name string
		opt  verbstest.Options
	}{
		{"RoCE", verbstest.Options{}},
		{"RoCE async", verbstest.Options{Async: true}},
		{"soft", verbstest.Options{Soft: true}},
		{"iWARP", verbstest.Options{IWARP: true}},
		{"iWARP async", verbstest.Options{IWARP: true, Async: true}},
	} {
		t.Run(c.name, func(t *testing.T) {
			f := verbstest.New(c.opt)
			defer f.Close()
			for _, addr := range f.Addrs("a") {
				t.Run(addr.String(), func(t *testing.T) {
					verbsconf.Run(t,
						verbsconf.Setup{
							A: f.Provider("a"), B: f.Provider("b"), AddrA: addr,
							FailDestroy: func(verbs.QP) func() {
								fail := func(times int) {
									f.FailCalls("a", verbstest.CallDestroyQP, 0, times, unix.EBUSY)
								}
								fail(-1)
								return func() { fail(0) }
							},
						})
				})
			}
			for _, h := range []string{"a", "b"} {
				testutil.Equal(t, f.Live(h), (verbstest.Counts{}), "machine %s is left with", h)
			}
		})
	}
}
