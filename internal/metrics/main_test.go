package metrics

import (
	"testing"
	"time"

	"github.com/nvmf-target/nvmf-target/internal/testing/testutil"
)

// TestMain gives scrapers so much time that no test depends on the limit.
func TestMain(m *testing.M) {
	readTimeout, writeTimeout, idleTimeout = time.Hour, time.Hour, time.Hour
	testutil.Main(m)
}
