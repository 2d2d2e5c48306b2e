package a

import (
	"flag"
	"testing"
)

var (
	rewrite = flag.Bool("rewrite", false, "")
	other   = new(bool) // want `package variable other is a pointer, which is made to change`
)

func TestWrites(t *testing.T) {
	t.Log(*rewrite)
	version = "test" // want `package variable version is assigned to`
}
