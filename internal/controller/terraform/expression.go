package terraform

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/google/cel-go/cel"
	"github.com/google/cel-go/interpreter"
)

// Bounds of the evaluation of an expression. The cost is about the number of steps.
const (
	expressionCost    = 1_000_000
	expressionTimeout = time.Second
)

// errTooExpensive means that an expression takes more than it may.
var errTooExpensive = errors.New("the expression takes too long; it may take about a million steps and one second")

// readyExpression compiles the readyExpr of a dependency. Its environment has the
// standard functions only: those of CEL's extension for strings can make one step
// take any amount of memory (replace, join, format).
func readyExpression(text string) (cel.Program, error) {
	env, err := cel.NewEnv(
		cel.HomogeneousAggregateLiterals(),
		cel.EagerlyValidateDeclarations(true),
		cel.DefaultUTCTimeZone(true),
		cel.CrossTypeNumericComparisons(true),
		cel.OptionalTypes(),
		cel.Variable("self", cel.ObjectType("google.protobuf.Struct")),
		cel.Variable("dep", cel.ObjectType("google.protobuf.Struct")),
	)
	if err != nil {
		return nil, err
	}
	ast, issues := env.Compile(text)
	if issues.Err() != nil {
		return nil, fmt.Errorf("the expression cannot be used: %w", issues.Err())
	}
	if ast.OutputType() != cel.BoolType {
		return nil, fmt.Errorf("the expression cannot be used: its result is of type %s and must be bool", ast.OutputType())
	}
	return env.Program(ast, cel.InterruptCheckFrequency(100), cel.CostLimit(expressionCost))
}

// evaluate runs an expression within its bounds. A single step that cannot be
// interrupted is left behind: nobody waits for it.
func evaluate(parent context.Context, program cel.Program, variables map[string]any) (bool, error) {
	ctx, cancel := context.WithTimeout(parent, expressionTimeout)
	defer cancel()
	type outcome struct {
		ready bool
		err   error
	}
	done := make(chan outcome, 1)
	go func() {
		value, _, err := program.ContextEval(ctx, variables)
		if err != nil {
			done <- outcome{err: err}
			return
		}
		ready, _ := value.Value().(bool)
		done <- outcome{ready: ready}
	}()
	var result outcome
	select {
	case result = <-done:
	case <-ctx.Done():
		result.err = errTooExpensive
	}
	if _, cancelled := errors.AsType[interpreter.EvalCancelledError](result.err); cancelled || (result.err != nil && ctx.Err() != nil) {
		result.err = errTooExpensive
	}
	if result.err != nil && parent.Err() != nil {
		return false, parent.Err() // the manager ends
	}
	return result.ready, result.err
}
