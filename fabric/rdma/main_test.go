package rdma

import (
	"flag"
	"fmt"
	"testing"

	"github.com/nvmf-target/nvmf-target/internal/mem"
	"github.com/nvmf-target/nvmf-target/internal/testing/testutil"
	"github.com/nvmf-target/nvmf-target/internal/testing/verbstest"
)

// onSoft: the tests run on the soft stack, not on the fake.
var onSoft bool

// newFabric makes a network of machines. Soft iWARP has no network in memory.
func newFabric(o verbstest.Options) *verbstest.Fabric {
	o.Soft = onSoft && !o.IWARP
	return verbstest.New(o)
}

// twice runs the tests on the fake, which chooses the worst order of events, and on the soft stack.
type twice struct{ *testing.M }

func (m twice) Run() int {
	code := m.M.Run()
	for _, name := range []string{"test.list", "test.bench"} {
		if flag.Lookup(name).Value.String() != "" {
			return code
		}
	}
	if err := flag.Set("test.testlogfile", ""); err != nil { // closed once only
		panic(err)
	}
	fmt.Println("the same tests on the soft stack:")
	onSoft = true
	return max(code, m.M.Run())
}

func TestMain(m *testing.M) {
	testutil.Main(twice{m}, func() error {
		if u := mem.Usage(); len(u) > 0 {
			return fmt.Errorf("leaked memory: %v", u)
		}
		return nil
	})
}
