package rdma

import (
	"fmt"
	"testing"

	"github.com/nvmf-target/nvmf-target/internal/mem"
	"github.com/nvmf-target/nvmf-target/internal/testing/testutil"
)

func TestMain(m *testing.M) {
	testutil.Main(m, func() error {
		if u := mem.Usage(); len(u) > 0 {
			return fmt.Errorf("leaked memory: %+v", u)
		}
		return nil
	})
}
