__attribute__((noinline)) static int twin(int x)
{
    return x * 7;
}

int call_other_twin(int x)
{
    return twin(x) + 3;
}
