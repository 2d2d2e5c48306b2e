package globals_test

import (
	"testing"

	"golang.org/x/tools/go/analysis/analysistest"

	"github.com/pullgate/pullgate/checks/globals"
)

func TestAnalyzerFindsVariablesThatChange(t *testing.T) {
	analysistest.Run(t, analysistest.TestData(), globals.Analyzer(), "a")
}

func TestAnalyzerLeavesCrashPointsAlone(t *testing.T) {
	t.Setenv("GOFLAGS", "-tags=crashpoint")
	analysistest.Run(t, analysistest.TestData(), globals.Analyzer(), "crash")
}
