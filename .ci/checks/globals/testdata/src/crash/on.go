//go:build crashpoint

package crash

var passed = make(chan int)
