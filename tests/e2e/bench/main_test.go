package bench

import (
	"testing"

	"github.com/nvmf-target/nvmf-target/tests/e2e"
)

func TestMain(m *testing.M) { e2e.Main(m) }
