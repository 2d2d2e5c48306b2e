package crash

var other = make(chan int) // want `package variable other is a channel, which is made to change`
