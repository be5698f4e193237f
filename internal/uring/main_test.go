package uring

import (
	"testing"

	"github.com/nvmf-target/nvmf-target/internal/testing/testutil"
)

func TestMain(m *testing.M) { testutil.Main(m) }
