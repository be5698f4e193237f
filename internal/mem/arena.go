package mem

// Arena hands out page-aligned blocks of one Region. One goroutine uses it.
type Arena struct{}
