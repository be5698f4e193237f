package metrics

import (
	"testing"

	"github.com/nvmf-target/nvmf-target/internal/leak"
)

func TestMain(m *testing.M) { leak.Main(m) }
