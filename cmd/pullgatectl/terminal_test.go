package main

import (
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"strconv"
	"strings"
	"syscall"
	"time"

	"github.com/rogpeppe/go-internal/testscript"
	"golang.org/x/sys/unix"
)

// terminal runs a program on a separate terminal, types a text once the screen shows a word, and compares its exit
// code. The file "screen" contains the output of the terminal. ^C and ^D are typed as control characters.
//
//	terminal code word text program [argument...]
func terminal(ts *testscript.TestScript, neg bool, args []string) {
	if neg || len(args) < 4 {
		ts.Fatalf("usage: terminal code word text program [argument...]")
	}
	ours, theirs, err := openTerminal()
	ts.Check(err)
	defer func() { _ = ours.Close() }()
	path, err := exec.LookPath(args[3])
	ts.Check(err)
	cmd := exec.Command(path, args[4:]...)
	cmd.Dir = ts.Getenv("WORK")
	cmd.Env = append(os.Environ(), "PULLGATECTL_ENDPOINT="+ts.Getenv("PULLGATECTL_ENDPOINT"), "TERM="+ts.Getenv("TERM"), "NO_COLOR="+ts.Getenv("NO_COLOR"))
	cmd.Stdin, cmd.Stdout, cmd.Stderr = theirs, theirs, theirs
	cmd.SysProcAttr = &syscall.SysProcAttr{Setsid: true, Setctty: true}
	ts.Check(cmd.Start())
	ts.Check(theirs.Close())
	watchdog := time.AfterFunc(20*time.Second, func() { _ = cmd.Process.Kill() })
	defer watchdog.Stop()

	typed := strings.NewReplacer("^C", "\x03", "^D", "\x04", `\n`, "\n").Replace(args[2])
	var screen strings.Builder
	for buf := make([]byte, 4096); ; {
		n, err := ours.Read(buf)
		screen.Write(buf[:n])
		if typed != "" && strings.Contains(screen.String(), args[1]) {
			_, err := io.WriteString(ours, typed)
			ts.Check(err)
			typed = ""
		}
		if err != nil { // EIO once no process has the terminal open
			break
		}
	}
	got := "0"
	if failure, ok := errors.AsType[*exec.ExitError](cmd.Wait()); ok {
		got = strconv.Itoa(failure.ExitCode())
	}
	text := strings.ReplaceAll(screen.String(), "\r\n", "\n")
	ts.Check(os.WriteFile(ts.MkAbs("screen"), []byte(text), 0o600))
	if got != args[0] {
		ts.Fatalf("%v exits with %s; want %s; the terminal shows\n%s", args[3:], got, args[0], text)
	}
}

// openTerminal returns both ends of a new terminal.
func openTerminal() (ours, theirs *os.File, err error) {
	ours, err = os.OpenFile("/dev/ptmx", os.O_RDWR|unix.O_NOCTTY, 0)
	if err != nil {
		return nil, nil, err
	}
	if err := unix.IoctlSetPointerInt(int(ours.Fd()), unix.TIOCSPTLCK, 0); err != nil {
		return nil, nil, errors.Join(err, ours.Close())
	}
	n, err := unix.IoctlGetUint32(int(ours.Fd()), unix.TIOCGPTN)
	if err != nil {
		return nil, nil, errors.Join(err, ours.Close())
	}
	theirs, err = os.OpenFile(fmt.Sprintf("/dev/pts/%d", n), os.O_RDWR|unix.O_NOCTTY, 0)
	if err != nil {
		return nil, nil, errors.Join(err, ours.Close())
	}
	return ours, theirs, nil
}
