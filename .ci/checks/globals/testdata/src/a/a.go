package a

import (
	"errors"
	"os"
	"regexp"
	"sync"
	"sync/atomic"
)

// What may be declared: sentinels, compiled tables, values that the linker sets.
var (
	ErrNone = errors.New("a: none")
	name    = regexp.MustCompile(`^[a-z]+$`)
	table   = map[string]int{"one": 1}
	list    = []string{"one", "two"}
	magic   = []byte("magic")
	version = "dev"
	clock   = func() int { return 0 }
)

type counter struct{ n int }

func (c *counter) add()    { c.n++ }
func (c counter) get() int { return c.n }

var (
	mu     sync.Mutex       // want `package variable mu is sync.Mutex, which is made to change`
	hits   atomic.Int64     // want `package variable hits is atomic.Int64, which is made to change`
	queue  = make(chan int) // want `package variable queue is a channel, which is made to change`
	shared = &counter{}     // want `package variable shared is a pointer, which is made to change`
	total  counter
	seen   = map[string]bool{}
	level  int
)

func reads(s string) (int, bool) {
	for i, l := range list {
		if l == s {
			return table[s] + i + clock() + total.get(), name.MatchString(version)
		}
	}
	local := map[string]int{}
	local[s] = len(magic)
	level := 1 // hides the variable of the package
	level++
	return level, errors.Is(nil, ErrNone)
}

func writes(s string) {
	level = 1          // want `package variable level is assigned to`
	level++            // want `package variable level is changed`
	table[s] = 2       // want `package variable table is assigned to`
	list[0] = s        // want `package variable list is assigned to`
	list[0], s = s, s  // want `package variable list is assigned to`
	total.n = 3        // want `package variable total is assigned to`
	total.add()        // want `package variable total is changed by method add`
	delete(table, s)   // want `package variable table is changed`
	clear(seen)        // want `package variable seen is changed`
	copy(magic, s)     // want `package variable magic is changed`
	copy(magic[1:], s) // want `package variable magic is changed`
	p := &level        // want `package variable level is handed out by its address`
	_ = p
	clock = nil              // want `package variable clock is assigned to`
	os.Args = nil            // want `package variable Args is assigned to`
	for level = range list { // want `package variable level is assigned to`
	}
	shared.n = 4 // reported where it is declared
}
